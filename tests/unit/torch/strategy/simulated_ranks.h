// Simulated ranks: one reduction of a bucket per rank, driven in lockstep; their collectives run on
// the buffers themselves. For tests; one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "strategy/bucket_reduction.h"

namespace coupler::strategy {

inline void perform_sum(const std::vector<db_op>& ops) {
  const uint64_t n = ops[0].count;
  std::vector<float> sum(n, 0.0F);
  for (const db_op& op : ops) {
    ASSERT_EQ(op.count, n);
    ASSERT_EQ(op.dtype, static_cast<uint32_t>(DB_F32));
    const auto* const values = static_cast<const float*>(op.send != nullptr ? op.send : op.recv);
    for (uint64_t i = 0; i < n; ++i) sum[i] += values[i];
  }
  for (const db_op& op : ops) std::memcpy(op.recv, sum.data(), n * sizeof(float));
}

inline void perform_all_to_all(const std::vector<db_op>& ops) {
  for (size_t to = 0; to < ops.size(); ++to) {
    uint64_t into = 0;
    for (size_t from = 0; from < ops.size(); ++from) {
      ASSERT_EQ(ops[from].send_counts[to], ops[to].recv_counts[from]);
      uint64_t at = 0;
      for (size_t r = 0; r < to; ++r) at += ops[from].send_counts[r];
      const uint64_t count = ops[to].recv_counts[from];
      std::memcpy(static_cast<char*>(ops[to].recv) + into,
                  static_cast<const char*>(ops[from].send) + at, count);
      into += count;
    }
  }
}

inline void perform_all_gather(const std::vector<db_op>& ops) {
  for (const db_op& op : ops) {
    uint64_t into = 0;
    for (size_t from = 0; from < ops.size(); ++from) {
      ASSERT_EQ(op.recv_counts[from], ops[from].recv_counts[from]);
      std::memcpy(static_cast<char*>(op.recv) + into, ops[from].send, op.recv_counts[from]);
      into += op.recv_counts[from];
    }
  }
}

inline void reduce_together(const std::vector<std::unique_ptr<BucketReduction>>& ranks) {
  const int operations = ranks[0]->operations();
  for (int i = 0; i < operations; ++i) {
    std::vector<db_op> ops;
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank->operations(), operations);
      ops.push_back(rank->operation(i));
    }
    for (const db_op& op : ops) ASSERT_EQ(op.kind, ops[0].kind);
    if (ops[0].kind == DB_ALL_REDUCE) {
      perform_sum(ops);
    } else if (ops[0].kind == DB_ALL_TO_ALL_V) {
      perform_all_to_all(ops);
    } else {
      ASSERT_EQ(ops[0].kind, static_cast<uint32_t>(DB_ALL_GATHER_V));
      perform_all_gather(ops);
    }
  }
  for (const auto& rank : ranks) rank->finish();
}

}  // namespace coupler::strategy
