#include "strategy/compressed_collectives.h"

#include <ATen/Functions.h>

#include <numeric>
#include <utility>

#include "device/device_memory.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

constexpr int64_t kCacheLine = 64;  // bytes

int64_t aligned(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

}  // namespace

CodedParts::CodedParts(const GradientCodec& codec, int64_t n, int ranks) {
  // Parts are multiples of 64 elements, so that no two share a cache line.
  const int64_t each = aligned((n + ranks - 1) / ranks);
  for (int r = 0; r <= ranks; ++r) begins.push_back(std::min(n, r * each));
  lay_out(codec);
}

CodedParts::CodedParts(const GradientCodec& codec, const std::vector<uint64_t>& counts) {
  begins.push_back(0);
  for (const uint64_t count : counts) begins.push_back(begins.back() + static_cast<int64_t>(count));
  lay_out(codec);
}

void CodedParts::lay_out(const GradientCodec& codec) {
  bytes.push_back(0);
  for (size_t r = 0; r + 1 < begins.size(); ++r) {
    const int64_t size = aligned(codec.bytes(begins[r + 1] - begins[r]));
    sizes.push_back(static_cast<uint64_t>(size));
    bytes.push_back(bytes.back() + size);
  }
}

at::Tensor CodedParts::of(const at::Tensor& values, int rank) const {
  return values.narrow(0, begins[index(rank)], count(rank));
}

at::Tensor CodedParts::code_of(const at::Tensor& code, const GradientCodec& codec, int rank) const {
  return code.narrow(0, bytes[index(rank)], codec.bytes(count(rank)));
}

CompressedAllReduce::CompressedAllReduce(at::Tensor memory, at::Tensor error,
                                         std::shared_ptr<const GradientCodec> codec,
                                         std::vector<at::Tensor> padding, int rank, int ranks)
    : memory_(std::move(memory)),
      error_(std::move(error)),
      codec_(std::move(codec)),
      padding_(std::move(padding)),
      rank_(rank),
      ranks_(ranks),
      parts_(*codec_, memory_.numel(), ranks),
      to_send_(parts_.sizes),
      to_receive_(static_cast<size_t>(ranks), parts_.sizes[static_cast<size_t>(rank)]) {
  to_send_[static_cast<size_t>(rank)] = to_receive_[static_cast<size_t>(rank)] = 0;
  const auto bytes = memory_.options().dtype(at::kByte);
  sums_ = at::zeros({parts_.bytes.back()}, bytes);
  // The buffer of the first send is free when sums are gathered, and large enough for them.
  sent_ = at::zeros({parts_.bytes.back()}, bytes);
  // Never empty, even if the part is: operations do not accept a null pointer.
  const auto size = static_cast<int64_t>(parts_.sizes[static_cast<size_t>(rank)]);
  received_ = at::zeros({size * (ranks - 1) + kCacheLine}, bytes);
}

db_op CompressedAllReduce::operation(int i) { return i == 0 ? exchange_parts() : gather_sums(); }

db_op CompressedAllReduce::exchange_parts() {
  at::Tensor memory = memory_;
  if (error_.defined()) memory.add_(error_);
  int64_t to = 0;
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    codec_->encode(parts_.of(memory_, r), sent_.narrow(0, to, codec_->bytes(parts_.count(r))),
                   error_.defined() ? parts_.of(error_, r) : at::Tensor());
    to += static_cast<int64_t>(parts_.sizes[static_cast<size_t>(r)]);
  }
  db_op op{};
  op.kind = DB_ALL_TO_ALL_V;
  op.dtype = tensors::to_db_dtype(at::kByte);
  op.memory = tensors::memory_of(memory_.device());
  op.send = sent_.const_data_ptr();
  op.recv = received_.mutable_data_ptr();
  op.send_counts = to_send_.data();
  op.recv_counts = to_receive_.data();
  return op;
}

db_op CompressedAllReduce::gather_sums() {
  const at::Tensor sum = parts_.of(memory_, rank_);
  const int64_t n = parts_.count(rank_);
  const auto size = static_cast<int64_t>(parts_.sizes[static_cast<size_t>(rank_)]);
  for (int64_t k = 0; k + 1 < ranks_ && n > 0; ++k) {
    codec_->decode(received_.narrow(0, k * size, codec_->bytes(n)), sum, /*add=*/true);
  }
  if (n > 0) {
    codec_->encode(sum, sent_.narrow(0, 0, codec_->bytes(n)),
                   error_.defined() ? parts_.of(error_, rank_) : at::Tensor());
  }
  db_op op{};
  op.kind = DB_ALL_GATHER_V;
  op.dtype = tensors::to_db_dtype(at::kByte);
  op.memory = tensors::memory_of(memory_.device());
  op.send = sent_.const_data_ptr();
  op.recv = sums_.mutable_data_ptr();
  op.recv_counts = parts_.sizes.data();
  return op;
}

void CompressedAllReduce::finish() {
  for (int r = 0; r < ranks_; ++r) {
    if (parts_.count(r) == 0) continue;
    codec_->decode(parts_.code_of(sums_, *codec_, r), parts_.of(memory_, r), /*add=*/false);
  }
  for (at::Tensor& part : padding_) part.zero_();
}

CompressedReduceScatter::CompressedReduceScatter(
    comm::Communicator& comm, const GradientCodec& codec, const std::vector<uint64_t>& counts,
    at::Tensor values, at::Tensor own, at::Tensor error, residency::BufferPool& pool, bool overlap)
    : codec_(&codec), others_(comm.size() - 1), own_(std::move(own)) {
  const CodedParts parts(codec, counts);
  const int rank = comm.rank();
  own_values_ = parts.of(values, rank);
  to_send_ = parts.sizes;
  message_ = static_cast<int64_t>(parts.sizes[static_cast<size_t>(rank)]);
  to_receive_.assign(counts.size(), static_cast<uint64_t>(message_));
  to_send_[static_cast<size_t>(rank)] = to_receive_[static_cast<size_t>(rank)] = 0;
  sent_ = pool.take(static_cast<size_t>(parts.bytes.back()) + 1);
  received_ = pool.take(static_cast<size_t>(message_ * others_) + 1);
  if (error.defined()) values.add_(error);
  int64_t to = 0;
  for (int r = 0; r < comm.size(); ++r) {
    if (r == rank) continue;
    const int64_t n = parts.count(r);
    if (n > 0) {
      codec.encode(parts.of(values, r),
                   device::over_memory(static_cast<char*>(sent_.data()) + to, codec.bytes(n),
                                       at::kByte, values.device()),
                   error.defined() ? parts.of(error, r) : at::Tensor());
    }
    to += static_cast<int64_t>(parts.sizes[static_cast<size_t>(r)]);
  }
  // This rank's own part enters its sum unencoded, so it loses nothing.
  if (error.defined()) parts.of(error, rank).zero_();
  db_op op{};
  op.kind = DB_ALL_TO_ALL_V;
  op.dtype = tensors::to_db_dtype(at::kByte);
  op.memory = tensors::memory_of(values.device());
  op.send = sent_.data();
  op.recv = received_.data();
  op.send_counts = to_send_.data();
  op.recv_counts = to_receive_.data();
  if (overlap) {
    work_ = comm.submit(op);
  } else {
    comm.run(op);
  }
}

void CompressedReduceScatter::wait() {
  work_.wait();
  const int64_t n = own_.numel();
  if (n == 0) return;
  if (own_.data_ptr() != own_values_.data_ptr()) own_.copy_(own_values_);
  for (int64_t k = 0; k < others_; ++k) {
    codec_->decode(device::over_memory(static_cast<char*>(received_.data()) + k * message_,
                                       codec_->bytes(n), at::kByte, own_.device()),
                   own_, /*add=*/true);
  }
}

}  // namespace coupler::strategy
