#include "strategy/coded_scatter.h"

#include <utility>

#include "device/torch_device_memory.h"
#include "strategy/exchange_reduction.h"
#include "tensors/tensor_ops.h"

namespace coupler {

CodedScatter::CodedScatter(Communicator& comm, const GradientCodec& codec,
                           const std::vector<uint64_t>& counts, at::Tensor values, at::Tensor own,
                           at::Tensor error, BufferPool& pool, bool overlap)
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
                   over_memory(static_cast<char*>(sent_.data()) + to, codec.bytes(n), at::kByte,
                               values.device()),
                   error.defined() ? parts.of(error, r) : at::Tensor());
    }
    to += static_cast<int64_t>(parts.sizes[static_cast<size_t>(r)]);
  }
  // This rank's own part enters its sum unencoded, so it loses nothing.
  if (error.defined()) parts.of(error, rank).zero_();
  db_op op{};
  op.kind = DB_ALL_TO_ALL_V;
  op.dtype = to_db_dtype(at::kByte);
  op.memory = memory_of(values.device());
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

void CodedScatter::wait() {
  work_.wait();
  const int64_t n = own_.numel();
  if (n == 0) return;
  if (own_.data_ptr() != own_values_.data_ptr()) own_.copy_(own_values_);
  for (int64_t k = 0; k < others_; ++k) {
    codec_->decode(over_memory(static_cast<char*>(received_.data()) + k * message_,
                               codec_->bytes(n), at::kByte, own_.device()),
                   own_, /*add=*/true);
  }
}

}  // namespace coupler
