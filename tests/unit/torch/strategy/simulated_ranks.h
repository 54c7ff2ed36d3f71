// Simulated ranks: one reduction of a bucket per rank, driven in lockstep; their collectives run on
// the buffers themselves. For tests; one thread.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "strategy/bucket_reduction.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {

// In fp32, rounded once at the end.
inline void perform_sum(const std::vector<db_op>& ops) {
  const db_dtype dtype = ops[0].dtype;
  const at::ScalarType type = dtype == DB_F16    ? at::kHalf
                              : dtype == DB_BF16 ? at::kBFloat16
                                                 : at::kFloat;
  ASSERT_EQ(dtype, tensors::to_db_dtype(type));
  const auto n = static_cast<int64_t>(ops[0].count);
  at::Tensor sum = at::zeros({n});
  for (const db_op& op : ops) {
    ASSERT_EQ(op.count, ops[0].count);
    ASSERT_EQ(op.dtype, dtype);
    sum += at::from_blob(op.recv, {n}, type).to(at::kFloat);  // in place: send is recv
  }
  for (const db_op& op : ops) at::from_blob(op.recv, {n}, type).copy_(sum);
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
