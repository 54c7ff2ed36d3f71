// Communicators of shm that continue without some of their ranks.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "ranks/faults.h"
#include "ranks/ranks.h"
#include "ranks/shrink.h"

namespace backend_test {
namespace {

TEST(ShmShrink, RanksThatStay_KeepTheirOrderAndTheOldCommunicator) {
  expect_ranks(job_of(4), [](int32_t rank, Rank& self) {
    float one = 1;
    ASSERT_EQ(self.run(all_reduce(&one, &one, 1), false), DB_OK);
    if (rank != 2) {
      db_communicator* part = nullptr;
      ASSERT_EQ(shrink(self, {2}, 0, &part), DB_OK) << self.error.text.data();
      EXPECT_EQ(part->size, 3);
      EXPECT_EQ(part->rank, rank - (rank > 2 ? 1 : 0));
      EXPECT_EQ(sum_on(part, DB_MEMORY_HOST), 3);
    }
    ASSERT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK);
    EXPECT_EQ(one, 16);
  });
}

// Any rank may be lost, rank 0 as well. The communicator has failed by then.
TEST(ShmShrink, LostRank_TheOthersContinueAndCanLoseAnother) {
  for (const int32_t victim : {0, 2}) {
    const std::vector<int> statuses = fork_ranks(job_of(4), [&](int32_t rank, Rank& self) {
      float one = 1;
      ASSERT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK);
      if (rank == victim) kill(getpid(), SIGKILL);
      EXPECT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_ERR_PEER_LOST);
      EXPECT_EQ(self.error.error.failed_rank, victim) << self.error.text.data();
      db_communicator* part = nullptr;
      EXPECT_EQ(shrink(self, {victim}, 0, &part), DB_ERR_ABORTED) << "it has failed";
      ASSERT_EQ(shrink(self, {victim}, DB_SHRINK_ABORT, &part), DB_OK) << self.error.text.data();
      EXPECT_EQ(part->size, 3);
      self.functions->destroy(self.communicator);
      self.communicator = part;
      if (part->rank == 1) kill(getpid(), SIGKILL);
      EXPECT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_ERR_PEER_LOST);
      ASSERT_EQ(shrink(self, {1}, DB_SHRINK_ABORT, &part), DB_OK) << self.error.text.data();
      EXPECT_EQ(sum_on(part, DB_MEMORY_HOST), 2);
    });
    int ended = 0;
    for (const int status : statuses) ended += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT_EQ(ended, 2);
  }
}

TEST(ShmShrink, RankThatDoesNotCall_EndsTheOthers) {
  for (const int32_t absent : {0, 1}) {
    Job job = job_of(3);
    job.timeout_ns = 2'000'000'000;
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      if (rank == 2) return;
      if (rank == absent) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3500));
        return;
      }
      db_communicator* part = nullptr;
      const auto begin = steady_clock::now();
      EXPECT_EQ(shrink(self, {2}, DB_SHRINK_ABORT, &part), DB_ERR_TIMEOUT)
          << self.error.text.data();
      EXPECT_LT(milliseconds_since(begin), 20'000);
      EXPECT_EQ(self.error.error.failed_rank, absent) << self.error.text.data();
      EXPECT_EQ(part, nullptr);
      EXPECT_LT(self.functions->async_error(self.communicator, nullptr), 0);
    });
  }
}

TEST(ShmShrink, RanksThatExcludeOthers_AreTold) {
  Job job = job_of(4);
  job.timeout_ns = 2'000'000'000;
  expect_ranks(job, [](int32_t rank, Rank& self) {
    if (rank > 1) return;
    db_communicator* part = nullptr;
    EXPECT_LT(shrink(self, {rank + 2}, DB_SHRINK_ABORT, &part), 0);
    if (rank == 0) return;  // waits for rank 1 and rank 3
    EXPECT_TRUE(contains(self.error, "rank 1 and rank 0 exclude different ranks"))
        << self.error.text.data();
  });
}

TEST(ShmShrink, WrongRanks_AreNamed) {
  expect_ranks(job_of(2), [](int32_t rank, Rank& self) {
    db_communicator* part = nullptr;
    EXPECT_EQ(shrink(self, {rank}, 0, &part), DB_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(self.error, "is excluded and must not call it"));
    EXPECT_EQ(shrink(self, {2}, 0, &part), DB_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(self.error, "ranks go from 0 to 1")) << self.error.text.data();
  });
}

}  // namespace
}  // namespace backend_test
