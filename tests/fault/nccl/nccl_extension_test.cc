// The extensions of nccl's communicators: shrink and registration.
#include <coupler/registration.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "nccl_job.h"
#include "ranks/shrink.h"

namespace backend_test {
namespace {

TEST(NcclShrink, RanksThatStay_KeepTheirOrderAndTheOldCommunicator) {
  expect_ranks(nccl_job(4), [](int32_t rank, Rank& self) {
    std::vector<float> data(100, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 100), false), DB_OK);
    if (rank != 2) {
      db_communicator* part = nullptr;
      ASSERT_EQ(shrink(self, {2}, 0, &part), DB_OK) << self.error.text.data();
      EXPECT_EQ(part->size, 3);
      EXPECT_EQ(part->rank, rank - (rank > 2 ? 1 : 0));
      EXPECT_EQ(sum_on(part, DB_MEMORY_CUDA), 3);
    }
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 100), true), DB_OK);
    EXPECT_EQ(data[0], 16);
  });
}

// Two of four ranks disappear during an operation: the others end it and continue.
TEST(NcclShrink, LostRanks_AreLeftBehind) {
  expect_ranks(nccl_job(4), [](int32_t rank, Rank& self) {
    std::vector<float> data(1000, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), true), DB_OK);
    if (rank % 2 == 0) _exit(0);
    db_op op = all_reduce(data.data(), data.data(), 1000);
    op.struct_size = sizeof op;
    op.memory = DB_MEMORY_CUDA;
    db_request* request = nullptr;
    ASSERT_EQ(self.functions->submit(self.communicator, &op, &request, self.error), DB_IN_PROGRESS);
    EXPECT_EQ(self.functions->wait_host(request, 200'000'000, self.error), DB_ERR_TIMEOUT);
    db_communicator* part = nullptr;
    ASSERT_EQ(shrink(self, {2, 0}, DB_SHRINK_ABORT, &part), DB_OK) << self.error.text.data();
    EXPECT_EQ(part->size, 2);
    EXPECT_EQ(part->rank, rank / 2);
    EXPECT_EQ(self.functions->wait_host(request, -1, self.error), DB_ERR_ABORTED);
    EXPECT_TRUE(contains(self.error, "shrink canceled pending operations"))
        << self.error.text.data();
    self.functions->release(request);
    EXPECT_EQ(self.functions->async_error(self.communicator, self.error), DB_ERR_ABORTED);
    EXPECT_EQ(sum_on(part, DB_MEMORY_CUDA), 2);
    EXPECT_EQ(shrink(self, {0}, 0, &part), DB_ERR_ABORTED);
    EXPECT_EQ(part, nullptr);
  });
}

TEST(NcclShrink, RankThatDoesNotCall_EndsTheOthers) {
  for (const uint64_t flags : {uint64_t{0}, uint64_t{DB_SHRINK_ABORT}}) {
    Job job = nccl_job(3);
    job.timeout_ns = 4'000'000'000;
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      if (rank > 0) return;
      db_communicator* part = nullptr;
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(shrink(self, {2}, flags, &part), DB_ERR_TIMEOUT) << self.error.text.data();
      EXPECT_LT(milliseconds_since(begin), 40'000);
      EXPECT_EQ(part, nullptr);
      EXPECT_TRUE(contains(self.error, "shrink has not completed after 4000 ms"))
          << self.error.text.data();
      EXPECT_LT(self.functions->async_error(self.communicator, nullptr), 0);
    });
  }
}

TEST(NcclShrink, WrongRanks_AreNamed) {
  expect_ranks(nccl_job(2), [](int32_t rank, Rank& self) {
    const std::vector<std::pair<std::vector<int32_t>, std::string>> cases = {
        {{}, "no rank is excluded"},
        {{0, 1}, "2 of 2 ranks are excluded: none would remain"},
        {{2}, "rank 2 is excluded, but ranks go from 0 to 1"},
        {{-1}, "rank -1 is excluded, but ranks go from 0 to 1"},
        {{rank}, "is excluded and must not call it"}};
    for (const auto& [excluded, part_of_text] : cases) {
      db_communicator* part = nullptr;
      EXPECT_EQ(shrink(self, excluded, 0, &part), DB_ERR_INVALID_ARGUMENT);
      EXPECT_TRUE(contains(self.error, part_of_text)) << self.error.text.data();
    }
    db_communicator* part = nullptr;
    EXPECT_EQ(shrink(self, {1 - rank}, 6, &part), DB_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(self.error, "unknown flags 6")) << self.error.text.data();
    EXPECT_EQ(self.functions->async_error(self.communicator, self.error), DB_OK);
  });
}

TEST(NcclRegistration, KnownBuffer_MovesAsBefore) {
  expect_ranks(nccl_job(2), [](int32_t, Rank& self) {
    const auto* const registration = extension<db_registration>(self, DB_REGISTRATION);
    std::vector<float> data(1000, 1);
    void* handle = nullptr;
    ASSERT_EQ(registration->add(self.communicator, data.data(), 4000, &handle, self.error), DB_OK)
        << self.error.text.data();
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), true), DB_OK);
    EXPECT_EQ(data[999], 2);
    EXPECT_EQ(registration->remove(self.communicator, handle, self.error), DB_OK);
    EXPECT_EQ(registration->remove(self.communicator, handle, self.error), DB_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(self.error, "ending a registration")) << self.error.text.data();
    EXPECT_EQ(registration->add(self.communicator, nullptr, 4, &handle, self.error),
              DB_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(self.error, "empty buffer")) << self.error.text.data();
  });
}

TEST(NcclRegistration, FailedCommunicator_HasLetGo) {
  expect_ranks(nccl_job(1), [](int32_t, Rank& self) {
    const auto* const registration = extension<db_registration>(self, DB_REGISTRATION);
    std::vector<float> data(1000, 1);
    void* handle = nullptr;
    ASSERT_EQ(registration->add(self.communicator, data.data(), 4000, &handle, self.error), DB_OK);
    self.functions->abort(self.communicator);
    EXPECT_EQ(registration->remove(self.communicator, handle, self.error), DB_OK);
    EXPECT_EQ(registration->add(self.communicator, data.data(), 4000, &handle, self.error),
              DB_ERR_ABORTED);
  });
}

TEST(NcclExtension, UnknownId_IsNone) {
  expect_ranks(nccl_job(1), [](int32_t, Rank& self) {
    EXPECT_EQ(self.functions->get_extension(self.communicator, "coupler.shrink/2"), nullptr);
    EXPECT_EQ(self.functions->get_extension(self.communicator, nullptr), nullptr);
  });
}

}  // namespace
}  // namespace backend_test
