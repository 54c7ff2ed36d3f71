// Faults that every transport must survive with the right error, for the ranks of ranks.h: a killed
// rank, a rank that never joins, ranks that disagree, abort.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ranks/buffer.h"
#include "ranks/ranks.h"

namespace backend_test {

using std::chrono::steady_clock;

inline bool contains(const Error& error, const std::string& text) {
  return std::string(error.text.data()).find(text) != std::string::npos;
}

// The ranks all-reduce until it fails; the victim kills itself midway. All other ranks must name
// it, and the communicator must be dead.
inline void check_kill(const Job& job, int32_t victim, uint64_t count, bool blocking) {
  const std::vector<int> statuses = fork_ranks(job, [&](int32_t rank, Rank& self) {
    Buffer<float> data(self, count, 1);
    std::thread killer;
    if (rank == victim) {
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        kill(getpid(), SIGKILL);
      });
    }
    const auto begin = steady_clock::now();
    db_status status = DB_OK;
    while (status == DB_OK && milliseconds_since(begin) < 20000)
      status = self.run(all_reduce(data.data(), data.data(), count), blocking);
    if (killer.joinable()) killer.join();
    EXPECT_LT(milliseconds_since(begin), 5000);
    EXPECT_EQ(status, DB_ERR_PEER_LOST) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, victim) << self.error.text.data();
    EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
    EXPECT_TRUE(contains(self.error, "rank " + std::to_string(victim))) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "all_reduce")) << self.error.text.data();
    Error error;
    EXPECT_EQ(self.functions->async_error(self.communicator, error), DB_ERR_PEER_LOST);
    EXPECT_LT(self.run(all_reduce(data.data(), data.data(), count), blocking), 0);
  });
  for (int32_t rank = 0; rank < job.size; ++rank) {
    const int status = statuses[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    } else {
      EXPECT_EQ(status, 0) << "rank " << rank << " of " << job.size;
    }
  }
}

// Rank 1 does not take part in the second of two all_reduces.
inline void check_timeout(const Job& job, bool blocking, uint64_t count) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    Buffer<float> data(self, count, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), count), blocking), DB_OK);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    db_op op = all_reduce(data.data(), data.data(), count);
    op.timeout_ns = 300'000'000;
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(op, blocking), DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_GE(milliseconds_since(begin), 250);
    EXPECT_LT(milliseconds_since(begin), 3000);
    EXPECT_EQ(self.error.error.failed_rank, 1) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "all_reduce")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 1")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "300 ms")) << self.error.text.data();
    EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
    EXPECT_EQ(self.run(op, blocking), DB_ERR_ABORTED);
  });
}

// The rank that waits longest gives up first, before the one that started later.
inline void check_late_and_absent(const Job& job) {
  constexpr int32_t kLate = 0;
  for (const int32_t absent : {1, 2}) {
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      Buffer<float> data(self, 1000, 1);
      ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), data.size()), true), DB_OK);
      if (rank == absent) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        return;
      }
      if (rank == kLate) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      db_op op = all_reduce(data.data(), data.data(), data.size());
      op.timeout_ns = 500'000'000;
      EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT) << self.error.text.data();
      EXPECT_EQ(self.error.error.failed_rank, absent) << self.error.text.data();
    });
  }
}

// Rank 1 never sends what rank 0 receives.
inline void check_receive_without_send(const Job& job) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
      return;
    }
    float data = 0;
    db_op op{};
    op.kind = DB_RECV;
    op.dtype = DB_F32;
    op.recv = &data;
    op.count = 1;
    op.root_or_peer = 1;
    op.timeout_ns = 200'000'000;
    EXPECT_EQ(self.run(op, false), DB_ERR_TIMEOUT);
    EXPECT_EQ(self.error.error.failed_rank, 1);
    EXPECT_TRUE(contains(self.error, "recv")) << self.error.text.data();
  });
}

// change makes the ranks differ from an all_reduce of 50 floats.
inline void check_mismatch(const Job& job, const std::function<void(int32_t, db_op*)>& change,
                           const std::vector<std::string>& texts) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    Buffer<float> data(self, 100, 1);
    db_op op = all_reduce(data.data(), data.data(), 50);
    change(rank, &op);
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(op, true), DB_ERR_MISMATCH) << self.error.text.data();
    EXPECT_LT(milliseconds_since(begin), 5000);
    EXPECT_TRUE(contains(self.error, "rank 0")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 1")) << self.error.text.data();
    for (const std::string& text : texts)
      EXPECT_TRUE(contains(self.error, text)) << self.error.text.data();
  });
}

inline void check_mismatches(const Job& job) {
  check_mismatch(job, [](int32_t rank, db_op* op) { op->count += static_cast<uint64_t>(rank); },
                 {"50 f32", "51 f32"});
  check_mismatch(job, [](int32_t rank, db_op* op) { op->dtype = rank == 0 ? DB_F32 : DB_I32; },
                 {"f32", "i32"});
  check_mismatch(job, [](int32_t rank, db_op* op) { op->reduce = rank == 0 ? DB_SUM : DB_MAX; },
                 {"sum", "max"});
  check_mismatch(job,
                 [](int32_t rank, db_op* op) {
                   if (rank == 1) op->kind = DB_BARRIER, op->reduce = 0;
                 },
                 {"all_reduce", "barrier"});
}

// abort from another thread ends the wait.
inline void check_abort(const Job& job) {
  for (const bool blocking : {true, false}) {
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      float data = 1;
      ASSERT_EQ(self.run(all_reduce(&data, &data, 1), true), DB_OK);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
        return;
      }
      std::thread aborter([&self] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_EQ(self.functions->abort(self.communicator), DB_OK);
      });
      const auto begin = steady_clock::now();
      EXPECT_EQ(self.run(all_reduce(&data, &data, 1), blocking), DB_ERR_ABORTED)
          << self.error.text.data();
      EXPECT_LT(milliseconds_since(begin), 1000);
      aborter.join();
      EXPECT_EQ(self.run(all_reduce(&data, &data, 1), blocking), DB_ERR_ABORTED);
    });
  }
}

// destroy while operations are queued.
inline void check_destroy(const Job& job) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    Buffer<float> data(self, 1 << 20, 1);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::vector<db_request*> requests(5);
    Error error;
    db_op op = all_reduce(data.data(), data.data(), data.size());
    op.struct_size = sizeof op;
    op.memory = DB_MEMORY_HOST;
    for (db_request*& request : requests)
      ASSERT_EQ(self.functions->submit(self.communicator, &op, &request, error), DB_IN_PROGRESS);
    for (db_request* request : requests) self.functions->release(request);
    const auto begin = steady_clock::now();
    self.functions->destroy(self.communicator);
    self.communicator = nullptr;
    EXPECT_LT(milliseconds_since(begin), 2000);
  });
}

// The last of three ranks is never started.
inline void check_absent_at_create(Job job) {
  job.size = 3;
  job.present = 2;
  job.timeout_ns = 300'000'000;
  job.must_connect = false;
  expect_ranks(job, [&](int32_t, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, 2);
    EXPECT_TRUE(contains(self.error, "rank 2")) << self.error.text.data();
  });
}

// A communicator with such an option is not made; text: what the error contains.
struct RefusedOption {
  const db_option* option;
  db_status status;
  const char* text;
};
inline void check_refused(const std::vector<RefusedOption>& cases) {
  for (const RefusedOption& each : cases) {
    Job job;
    job.present = 1;
    job.must_connect = false;
    job.options = {each.option};
    expect_ranks(job, [&](int32_t, Rank& self) {
      EXPECT_EQ(self.created, each.status);
      EXPECT_TRUE(contains(self.error, each.text)) << self.error.text.data();
    });
  }
}

}  // namespace backend_test
