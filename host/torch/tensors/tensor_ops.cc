#include "tensors/tensor_ops.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/comm_hook.h>
#include <coupler/error.h>
#include <fmt/ranges.h>

#include <array>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"

namespace coupler::tensors {
namespace {

constexpr std::array<std::pair<at::ScalarType, db_dtype>, 15> kSentTypes{{
    {at::kChar, DB_I8},
    {at::kByte, DB_U8},
    {at::kShort, DB_I16},
    {at::kUInt16, DB_U16},
    {at::kInt, DB_I32},
    {at::kUInt32, DB_U32},
    {at::kLong, DB_I64},
    {at::kUInt64, DB_U64},
    {at::kHalf, DB_F16},
    {at::kBFloat16, DB_BF16},
    {at::kFloat, DB_F32},
    {at::kDouble, DB_F64},
    {at::kBool, DB_BOOL},
    {at::kFloat8_e4m3fn, DB_F8_E4M3FN},
    {at::kFloat8_e5m2, DB_F8_E5M2},
}};

[[noreturn]] void refuse_tensor(const at::Tensor& tensor) {
  fail_argument(
      fmt::format("a collective needs a dense, contiguous tensor, not one of shape [{}] on {}{}",
                  fmt::join(tensor.sizes(), ", "), tensor.device().str(),
                  tensor.layout() != at::kStrided ? ", not dense" : ""),
      "", "call .contiguous() (and .to_dense()) on it first");
}

void require_plain(const at::Tensor& tensor) {
  require_dense(tensor);
  if (!tensor.is_contiguous()) refuse_tensor(tensor);
}

db_op tensor_op(db_kind kind, const at::Tensor& tensor) {
  require_plain(tensor);
  db_op op{};
  op.kind = kind;
  op.dtype = to_db_dtype(tensor.scalar_type());
  op.send = tensor.const_data_ptr();
  op.recv = tensor.mutable_data_ptr();
  op.count = static_cast<uint64_t>(tensor.numel());
  op.memory = memory_of(tensor.device());
  return op;
}

}  // namespace

db_memory memory_of(c10::Device device) {
  return device.is_cpu() ? DB_MEMORY_HOST : DB_MEMORY_CUDA;
}

void require_dense(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta()) refuse_tensor(tensor);
}

db_dtype to_db_dtype(at::ScalarType type) {
  for (const auto& [torch, sent] : kSentTypes) {
    if (torch == type) return sent;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("tensors of type {} cannot be sent between ranks", toString(type)),
              {.subject = toString(type),
               .hint = "convert to an integer, bool or floating type, or view_as_real it"});
}

db_reduce to_db_reduce(ReduceOp reduction) {
  switch (reduction) {
    case ReduceOp::kSum:
      return DB_SUM;
    case ReduceOp::kMean:
      return DB_AVG;
    case ReduceOp::kMin:
      return DB_MIN;
    case ReduceOp::kMax:
      return DB_MAX;
    case ReduceOp::kProduct:
      return DB_PROD;
  }
  return DB_SUM;
}

db_op all_reduce_op(const at::Tensor& tensor, db_reduce reduce) {
  db_op op = tensor_op(DB_ALL_REDUCE, tensor);
  op.reduce = reduce;
  return op;
}

db_op broadcast_op(const at::Tensor& tensor, int root) {
  db_op op = tensor_op(DB_BROADCAST, tensor);
  op.root_or_peer = root;
  return op;
}

db_op all_gather_op(const at::Tensor& input, const at::Tensor& output) {
  require_plain(output);
  db_op op = tensor_op(DB_ALL_GATHER, input);
  op.recv = output.mutable_data_ptr();
  return op;
}

db_op reduce_scatter_op(const at::Tensor& input, const at::Tensor& output, db_reduce reduce) {
  require_plain(input);
  db_op op = tensor_op(DB_REDUCE_SCATTER, output);
  op.send = input.const_data_ptr();
  op.reduce = reduce;
  return op;
}

db_op all_to_all_op(const at::Tensor& input, const at::Tensor& output) {
  require_plain(output);
  db_op op = tensor_op(DB_ALL_TO_ALL, input.select(0, 0));
  op.recv = output.mutable_data_ptr();
  return op;
}

db_op all_to_all_v_op(const at::Tensor& input, const std::vector<uint64_t>& send_counts,
                      const at::Tensor& output, const std::vector<uint64_t>& recv_counts) {
  require_plain(output);
  db_op op = tensor_op(DB_ALL_TO_ALL_V, input);
  op.recv = output.mutable_data_ptr();
  op.count = 0;
  op.send_counts = send_counts.data();
  op.recv_counts = recv_counts.data();
  return op;
}

db_op host_op(db_kind kind, db_dtype dtype, const void* send, void* recv, uint64_t count) {
  db_op op{};
  op.kind = kind;
  op.dtype = dtype;
  op.send = send;
  op.recv = recv;
  op.count = count;
  op.memory = DB_MEMORY_HOST;
  return op;
}

// Calls run on each message; with keep, then copies the message back to its tensors.
static void coalesced(const std::vector<at::Tensor>& tensors, bool keep,
                      const std::function<void(const at::Tensor& message)>& run) {
  at::NoGradGuard no_grad;
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>> small;
  std::vector<std::vector<at::Tensor>> messages;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (static_cast<int64_t>(tensor.nbytes()) > kPackUpTo) {
      messages.push_back({tensor});
    } else {
      small[{tensor.device().type(), tensor.scalar_type()}].push_back(tensor);
    }
  }
  for (auto& [type, list] : small) messages.push_back(std::move(list));
  for (const std::vector<at::Tensor>& list : messages) {
    if (list.size() == 1 && list[0].is_contiguous()) {
      run(list[0]);
      continue;
    }
    std::vector<at::Tensor> flats;
    flats.reserve(list.size());
    for (const at::Tensor& tensor : list) flats.push_back(tensor.reshape({-1}));
    const at::Tensor packed = at::cat(flats);
    run(packed);
    if (!keep) continue;
    int64_t offset = 0;
    for (const at::Tensor& tensor : list) {
      tensor.copy_(packed.narrow(0, offset, tensor.numel()).view_as(tensor));
      offset += tensor.numel();
    }
  }
}

void broadcast_coalesced(comm::Communicator& comm, const std::vector<at::Tensor>& tensors,
                         int root) {
  coalesced(tensors, comm.rank() != root,
            [&](const at::Tensor& message) { comm.run(broadcast_op(message, root)); });
}

void all_reduce_coalesced(comm::Communicator& comm, const std::vector<at::Tensor>& tensors,
                          db_reduce reduce) {
  coalesced(tensors, true,
            [&](const at::Tensor& message) { comm.run(all_reduce_op(message, reduce)); });
}

double all_reduce_number(comm::Communicator& comm, double value, db_reduce reduce) {
  const at::Tensor number = at::scalar_tensor(value, at::kDouble);
  comm.run(all_reduce_op(number, reduce));
  return *number.const_data_ptr<double>();
}

}  // namespace coupler::tensors
