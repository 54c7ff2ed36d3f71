// Every kind of operation compared with a naive reference, for the ranks of ranks.h. Each rank of a
// job calls these at the same time, on its main thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "ranks/buffer.h"
#include "ranks/ranks.h"

namespace backend_test {

// Small integers, so that sums and products are exact in every type and order.
template <class T>
T value(int32_t rank, uint64_t i) {
  return static_cast<T>((i * 7 + static_cast<uint64_t>(rank) * 3 + 1) % 5 + (i % 3 == 0 ? 1 : 0));
}

template <class T>
T combined(db_reduce reduce, int32_t size, uint64_t i, double scale) {
  double sum = 0, product = 1, low = 1e9, high = -1e9;
  int64_t all_and = -1, any_or = 0, any_xor = 0;
  for (int32_t rank = 0; rank < size; ++rank) {
    const double x = static_cast<double>(value<T>(rank, i));
    sum += x * (reduce == DB_PREMUL_SUM ? scale : 1);
    product *= x;
    low = std::min(low, x);
    high = std::max(high, x);
    all_and &= static_cast<int64_t>(x);
    any_or |= static_cast<int64_t>(x);
    any_xor ^= static_cast<int64_t>(x);
  }
  switch (reduce) {
    case DB_PROD:
      return static_cast<T>(product);
    case DB_MIN:
      return static_cast<T>(low);
    case DB_MAX:
      return static_cast<T>(high);
    case DB_AVG:
      return static_cast<T>(static_cast<T>(sum) / static_cast<T>(size));
    case DB_BAND:
      return static_cast<T>(all_and);
    case DB_BOR:
      return static_cast<T>(any_or);
    case DB_BXOR:
      return static_cast<T>(any_xor);
    default:
      return static_cast<T>(sum);
  }
}

// all_reduce, reduce and reduce_scatter with every reduction that the backend has for dtype.
template <class T>
void check_reductions(Rank& self, int32_t rank, int32_t size, db_dtype dtype, uint64_t count) {
  for (const db_reduce reduce :
       {DB_SUM, DB_PROD, DB_MIN, DB_MAX, DB_AVG, DB_PREMUL_SUM, DB_BAND, DB_BOR, DB_BXOR}) {
    for (const db_kind kind : {DB_ALL_REDUCE, DB_REDUCE, DB_REDUCE_SCATTER}) {
      for (const bool in_place : {false, true}) {
        const uint64_t parts = kind == DB_REDUCE_SCATTER ? static_cast<uint64_t>(size) : 1;
        Buffer<T> send(self, count * parts), recv(self, count * parts, T(99));
        for (uint64_t i = 0; i < send.size(); ++i) send[i] = value<T>(rank, i);
        db_op op{};
        op.kind = kind;
        op.dtype = dtype;
        op.reduce = reduce;
        op.root_or_peer = kind == DB_REDUCE ? size - 1 : 0;
        op.count = count;
        op.scale = 2;
        op.send = send.data();
        const uint64_t shift = kind == DB_REDUCE_SCATTER ? static_cast<uint64_t>(rank) * count : 0;
        op.recv = in_place ? send.data() + shift : recv.data();
        op.struct_size = sizeof op;
        op.memory = DB_MEMORY_HOST;
        int32_t score = 0;
        ASSERT_EQ(self.functions->supports(self.communicator, &op, &score), DB_OK);
        if (score == 0) continue;
        ASSERT_EQ(self.run(op, (count + static_cast<uint64_t>(kind)) % 2 == 0), DB_OK)
            << self.error.text.data();
        if (kind == DB_REDUCE && rank != size - 1) continue;
        const T* const result = static_cast<const T*>(op.recv);
        uint64_t i = 0;  // of the first difference
        while (i < count && result[i] == combined<T>(reduce, size, i + shift, 2)) ++i;
        ASSERT_EQ(i, count) << "kind " << kind << " dtype " << dtype << " reduce " << reduce
                            << " of " << size << " ranks, in place " << in_place;
      }
    }
  }
}

// An all_reduce of floats whose sum depends on the order has the same bits on every rank.
inline void check_same_bits(Rank& self, int32_t rank, int32_t size, uint64_t count) {
  Buffer<float> data(self, count);
  for (uint64_t i = 0; i < count; ++i)
    data[i] = std::sin(static_cast<float>(i)) / static_cast<float>(rank + 3);
  ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), count), true), DB_OK);
  Buffer<float> all(self, count * static_cast<uint64_t>(size));
  db_op gather{};
  gather.kind = DB_ALL_GATHER;
  gather.dtype = DB_F32;
  gather.send = data.data();
  gather.recv = all.data();
  gather.count = count;
  ASSERT_EQ(self.run(gather, true), DB_OK);
  for (uint64_t other = 0; other < static_cast<uint64_t>(size); ++other)
    EXPECT_EQ(std::memcmp(&all[other * count], data.data(), count * sizeof(float)), 0);
}

// Element i of what rank `from` sends to rank `to`.
inline uint8_t mark(int32_t from, int32_t to, uint64_t i) {
  return static_cast<uint8_t>(from * 50 + to * 11 + static_cast<int32_t>(i % 7));
}

// Every kind that only moves data, with parts of count elements.
inline void check_movers(Rank& self, int32_t rank, int32_t size, uint64_t count, bool blocking) {
  const auto ranks = static_cast<uint64_t>(size), me = static_cast<uint64_t>(rank);
  for (int32_t root = 0; root < size; ++root) {
    db_op op{};
    op.dtype = DB_F8_E4M3FN;  // fp8 moves as bytes
    op.count = count;
    op.root_or_peer = root;
    Buffer<uint8_t> one(self, count), many(self, count * ranks), seen(self, count, 77);
    for (uint64_t i = 0; i < count; ++i) one[i] = mark(rank, 0, i);
    op.kind = DB_BROADCAST;
    op.send = one.data();
    op.recv = seen.data();
    ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], mark(root, 0, i));
    op.kind = DB_GATHER;
    op.recv = many.data();
    ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
    for (uint64_t i = 0; rank == root && i < many.size(); ++i)
      ASSERT_EQ(many[i], mark(static_cast<int32_t>(i / count), 0, i % count));
    for (uint64_t i = 0; i < many.size(); ++i)
      many[i] = mark(rank, static_cast<int32_t>(i / count), i % count);
    op.kind = DB_SCATTER;
    op.send = many.data();
    op.recv = seen.data();
    ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], mark(root, rank, i));
  }
  db_op op{};
  op.kind = DB_ALL_TO_ALL;
  op.dtype = DB_U8;
  op.count = count;
  Buffer<uint8_t> in(self, count * ranks), out(self, count * ranks);
  for (uint64_t i = 0; i < in.size(); ++i)
    in[i] = mark(rank, static_cast<int32_t>(i / count), i % count);
  op.send = in.data();
  op.recv = out.data();
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
  for (uint64_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], mark(static_cast<int32_t>(i / count), rank, i % count));
  op.recv = in.data();  // in place
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
  ASSERT_TRUE(std::equal(in.begin(), in.end(), out.begin()));

  // The V kinds: rank r has r + count elements; for all_to_all_v, multiplied by the receiver.
  std::vector<uint64_t> counts, send_counts, recv_counts;
  for (uint64_t r = 0; r < ranks; ++r) {
    counts.push_back(r + count);
    send_counts.push_back((me + 1) * r);
    recv_counts.push_back((r + 1) * me);
  }
  const auto total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  Buffer<int32_t> own(self, me + count, rank + 1), gathered(self, total, -1);
  op = {};
  op.kind = DB_ALL_GATHER_V;
  op.dtype = DB_I32;
  op.recv_counts = counts.data();
  op.send = own.data();
  op.recv = gathered.data();
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
  for (uint64_t r = 0, at = 0; r < ranks; ++r)
    for (uint64_t i = 0; i < counts[r]; ++i) ASSERT_EQ(gathered[at++], static_cast<int32_t>(r) + 1);
  op.kind = DB_REDUCE_SCATTER_V;
  op.reduce = DB_SUM;
  op.send = gathered.data();
  op.recv = own.data();
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
  for (const int32_t x : own) ASSERT_EQ(x, (rank + 1) * size);
  op = {};
  op.kind = DB_ALL_TO_ALL_V;
  op.dtype = DB_I32;
  op.send_counts = send_counts.data();
  op.recv_counts = recv_counts.data();
  Buffer<int32_t> away(self, (me + 1) * ranks * (ranks - 1) / 2, rank);
  Buffer<int32_t> here(self, me * ranks * (ranks + 1) / 2, -1);
  op.send = away.data();
  op.recv = here.data();
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
  for (uint64_t r = 0, at = 0; r < ranks; ++r)
    for (uint64_t i = 0; i < recv_counts[r]; ++i) ASSERT_EQ(here[at++], static_cast<int32_t>(r));
  op = {};
  op.kind = DB_BARRIER;
  ASSERT_EQ(self.run(op, blocking), DB_OK) << self.error.text.data();
}

}  // namespace backend_test
