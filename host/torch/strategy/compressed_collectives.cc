#include "strategy/compressed_collectives.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

constexpr int64_t kCacheLine = 64;  // bytes

int64_t aligned(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

// Parts are multiples of 64 elements, so that no two share a cache line.
std::vector<uint64_t> even_counts(int64_t n, int ranks) {
  const int64_t each = aligned((n + ranks - 1) / ranks);
  std::vector<uint64_t> counts;
  while (counts.size() < static_cast<size_t>(ranks)) {
    counts.push_back(static_cast<uint64_t>(std::min(n, each)));
    n -= std::min(n, each);
  }
  return counts;
}

db_op bytes_op(db_kind kind, const at::Tensor& from, const at::Tensor& to) {
  db_op op{};
  op.kind = kind;
  op.dtype = DB_U8;
  op.memory = tensors::memory_of(from.device());
  op.send = from.const_data_ptr();
  op.recv = to.mutable_data_ptr();
  return op;
}

}  // namespace

CodedParts::CodedParts(std::shared_ptr<const GradientCodec> by, const std::vector<uint64_t>& counts,
                       int own_rank)
    : codec(std::move(by)), rank(own_rank), begins{0} {
  for (const uint64_t count : counts) {
    begins.push_back(begins.back() + static_cast<int64_t>(count));
    sizes.push_back(static_cast<uint64_t>(aligned(codec->bytes(static_cast<int64_t>(count)))));
  }
  to_send = sizes;
  to_receive.assign(counts.size(), sizes[index(rank)]);
  to_send[index(rank)] = to_receive[index(rank)] = 0;
}

int64_t CodedParts::code_bytes() const {
  return static_cast<int64_t>(std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
}

int64_t CodedParts::received_bytes() const {
  return static_cast<int64_t>(sizes[index(rank)] * (sizes.size() - 1));
}

at::Tensor CodedParts::of(const at::Tensor& values, int r) const {
  return values.narrow(0, begins[index(r)], count(r));
}

db_op CodedParts::exchange(const at::Tensor& values, const at::Tensor& error,
                           const at::Tensor& sent, const at::Tensor& received) const {
  if (error.defined()) values.add_(error);
  int64_t to = 0;
  for (int r = 0; index(r) < sizes.size(); ++r) {
    if (r == rank || count(r) == 0) continue;
    codec->encode(of(values, r), sent.narrow(0, to, codec->bytes(count(r))),
                  error.defined() ? of(error, r) : at::Tensor());
    to += static_cast<int64_t>(sizes[index(r)]);
  }
  db_op op = bytes_op(DB_ALL_TO_ALL_V, sent, received);
  op.send_counts = to_send.data();
  op.recv_counts = to_receive.data();
  return op;
}

void CodedParts::add_received(const at::Tensor& received, const at::Tensor& own) const {
  if (own.numel() == 0) return;
  const auto size = static_cast<int64_t>(sizes[index(rank)]);
  for (int64_t from = 0; from < received_bytes(); from += size) {
    codec->decode(received.narrow(0, from, codec->bytes(own.numel())), own, /*add=*/true);
  }
}

CompressedAllReduce::CompressedAllReduce(at::Tensor memory, at::Tensor error,
                                         std::shared_ptr<const GradientCodec> codec,
                                         std::vector<at::Tensor> padding, int rank, int ranks)
    : memory_(std::move(memory)),
      error_(std::move(error)),
      padding_(std::move(padding)),
      parts_(std::move(codec), even_counts(memory_.numel(), ranks), rank) {
  const auto bytes = memory_.options().dtype(at::kByte);
  sums_ = at::zeros({parts_.code_bytes()}, bytes);
  // The buffer of the first send is free when sums are gathered, and large enough for them.
  sent_ = at::zeros({parts_.code_bytes()}, bytes);
  // Never empty, even if the part is: operations do not accept a null pointer.
  received_ = at::zeros({parts_.received_bytes() + kCacheLine}, bytes);
}

db_op CompressedAllReduce::operation(int i) {
  return i == 0 ? parts_.exchange(memory_, error_, sent_, received_) : gather_sums();
}

db_op CompressedAllReduce::gather_sums() {
  const at::Tensor sum = parts_.of(memory_, parts_.rank);
  parts_.add_received(received_, sum);
  if (sum.numel() > 0) {
    parts_.codec->encode(sum, sent_.narrow(0, 0, parts_.codec->bytes(sum.numel())),
                         error_.defined() ? parts_.of(error_, parts_.rank) : at::Tensor());
  }
  db_op op = bytes_op(DB_ALL_GATHER_V, sent_, sums_);
  op.recv_counts = parts_.sizes.data();
  return op;
}

void CompressedAllReduce::finish() {
  int64_t from = 0;
  for (size_t r = 0; r < parts_.sizes.size(); ++r) {
    const at::Tensor values = parts_.of(memory_, static_cast<int>(r));
    if (values.numel() == 0) continue;
    parts_.codec->decode(sums_.narrow(0, from, parts_.codec->bytes(values.numel())), values,
                         /*add=*/false);
    from += static_cast<int64_t>(parts_.sizes[r]);
  }
  for (at::Tensor& part : padding_) part.zero_();
}

CompressedReduceScatter::CompressedReduceScatter(comm::Communicator& comm,
                                                 std::shared_ptr<const GradientCodec> codec,
                                                 const std::vector<uint64_t>& counts,
                                                 const at::Tensor& values, at::Tensor own,
                                                 const at::Tensor& error,
                                                 residency::BufferPool& pool, bool overlap)
    : parts_(std::move(codec), counts, comm.rank()),
      own_values_(parts_.of(values, comm.rank())),
      own_(std::move(own)) {
  const int64_t sent = parts_.code_bytes() + 1, received = parts_.received_bytes() + 1;
  sent_ = pool.take(static_cast<size_t>(sent));
  received_ = pool.take(static_cast<size_t>(received));
  const db_op op =
      parts_.exchange(values, error, sent_.as(at::kByte, sent), received_.as(at::kByte, received));
  // This rank's own part enters its sum unencoded, so it loses nothing.
  if (error.defined()) parts_.of(error, comm.rank()).zero_();
  if (overlap) {
    work_ = comm.submit(op);
  } else {
    comm.run(op);
  }
}

void CompressedReduceScatter::wait() {
  work_.wait();
  if (own_.numel() == 0) return;
  if (own_.data_ptr() != own_values_.data_ptr()) own_.copy_(own_values_);
  parts_.add_received(received_.as(at::kByte, parts_.received_bytes()), own_);
}

}  // namespace coupler::strategy
