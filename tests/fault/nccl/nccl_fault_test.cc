// Faults of nccl: asynchronous errors, operations that hang, aborts that hang, ranks that disagree
// or never join. Every wait ends, and its error names the operation.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "nccl_job.h"

namespace backend_test {
namespace {

using std::chrono::steady_clock;

// All-reduces until one fails.
db_status reduce_until_failure(Rank& self, bool blocking, int64_t timeout_ns) {
  std::vector<float> data(1000, 1);
  db_op op = all_reduce(data.data(), data.data(), data.size());
  op.timeout_ns = timeout_ns;
  for (int step = 0; step < 100; ++step)
    if (const db_status status = self.run(op, blocking); status != DB_OK) return status;
  return DB_OK;
}

void expect_dead(Rank& self, db_status status) {
  EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
  Error error;
  EXPECT_EQ(self.functions->async_error(self.communicator, error), status);
  std::vector<float> data(4, 1);
  EXPECT_LT(self.run(all_reduce(data.data(), data.data(), 4), true), 0);
}

// The promise is one second.
TEST(NcclFault, AsynchronousError_IsANamedFailureSoon) {
  for (const bool blocking : {true, false}) {
    expect_ranks(nccl_job(2, "async:1:3"), [&](int32_t rank, Rank& self) {
      const auto begin = steady_clock::now();
      const db_status status = reduce_until_failure(self, blocking, 4'000'000'000);
      EXPECT_LT(milliseconds_since(begin), 10'000);
      if (rank == 0) {
        EXPECT_EQ(status, DB_ERR_TIMEOUT) << self.error.text.data();
      } else {
        EXPECT_EQ(status, DB_ERR_PEER_LOST) << self.error.text.data();
        EXPECT_EQ(self.error.error.native_code, 6);
        for (const char* part :
             {"asynchronous error during all_reduce of 1000 f32 (sum)", "operation 3",
              "connection to a peer was closed", "Another rank has exited"})
          EXPECT_TRUE(contains(self.error, part)) << self.error.text.data();
      }
      expect_dead(self, status);
    });
  }
}

TEST(NcclFault, Hang_EndsAtTheDeadline) {
  for (const bool blocking : {true, false}) {
    expect_ranks(nccl_job(3, "hang:1:2"), [&](int32_t, Rank& self) {
      std::vector<float> data(1000, 1);
      ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), blocking), DB_OK);
      const auto begin = steady_clock::now();
      EXPECT_EQ(reduce_until_failure(self, blocking, 300'000'000), DB_ERR_TIMEOUT);
      EXPECT_LT(milliseconds_since(begin), 6'000);
      EXPECT_TRUE(contains(self.error,
                           "all_reduce of 1000 f32 (sum), operation 2 has not "
                           "completed after 300 ms"))
          << self.error.text.data();
      expect_dead(self, DB_ERR_TIMEOUT);
    });
  }
}

TEST(NcclFault, Abort_EndsPendingWaitsAndReturnsAtOnce) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(1000, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), true), DB_OK);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const auto begin = steady_clock::now();
      EXPECT_EQ(self.functions->abort(self.communicator), DB_OK);
      EXPECT_LT(milliseconds_since(begin), 1'000);
    });
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), false), DB_ERR_ABORTED);
    EXPECT_LT(milliseconds_since(begin), 5'000);
    aborter.join();
    expect_dead(self, DB_ERR_ABORTED);
  });
}

// ncclCommAbort itself does not return: it is given five seconds.
TEST(NcclFault, AbortThatHangs_EndsWaitsAllTheSame) {
  expect_ranks(nccl_job(2, "stuck:0:1"), [&](int32_t, Rank& self) {
    const auto begin = steady_clock::now();
    EXPECT_EQ(reduce_until_failure(self, true, 300'000'000), DB_ERR_TIMEOUT);
    EXPECT_LT(milliseconds_since(begin), 50'000);
  });
}

TEST(NcclFault, UnequalCounts_EndAtTheDeadline) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    const uint64_t count = rank == 0 ? 10 : 100'000;
    std::vector<float> data(count, 1);
    db_op op = all_reduce(data.data(), data.data(), count);
    op.timeout_ns = 500'000'000;
    const db_status status = self.run(op, true);
    if (rank == 1) {
      EXPECT_EQ(status, DB_ERR_TIMEOUT) << self.error.text.data();
      EXPECT_TRUE(contains(self.error, "all_reduce of 100000 f32")) << self.error.text.data();
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  });
}

TEST(NcclFault, MessageLongerThanExpected_EndsAtTheDeadline) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(100'000, 1);
    db_op op = all_reduce(data.data(), data.data(), rank == 0 ? 100'000 : 10);
    op.kind = rank == 0 ? DB_SEND : DB_RECV;
    op.root_or_peer = 1 - rank;
    op.timeout_ns = 500'000'000;
    EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_TRUE(contains(self.error,
                         rank == 0 ? "send of 100000 f32 to rank 1" : "recv of 10 f32 from rank 0"))
        << self.error.text.data();
  });
}

// The ranks never connect: NCCL's own setup waits.
TEST(NcclFault, RankThatNeverJoinsTheFirstOperation_EndsAtTheDeadline) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    EXPECT_EQ(reduce_until_failure(self, false, 300'000'000), DB_ERR_TIMEOUT);
    expect_dead(self, DB_ERR_TIMEOUT);
  });
}

TEST(NcclFault, RankThatIsNeverStarted_EndsCreate) {
  Job job = nccl_job(3);
  job.present = 2;
  job.must_connect = false;
  job.timeout_ns = 500'000'000;
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, rank == 0 ? 2 : 0) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "create its communicator")) << self.error.text.data();
  });
}

TEST(NcclFault, RankThatDoesNotSplit_EndsTheOthersSplit) {
  Job job = nccl_job(2);
  job.timeout_ns = 1'000'000'000;
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return;
    }
    db_communicator* part = nullptr;
    EXPECT_EQ(self.functions->split(self.communicator, 0, 0, &part, self.error), DB_ERR_TIMEOUT);
    EXPECT_EQ(part, nullptr);
    EXPECT_TRUE(contains(self.error, "split")) << self.error.text.data();
    expect_dead(self, DB_ERR_TIMEOUT);
  });
}

}  // namespace
}  // namespace backend_test
