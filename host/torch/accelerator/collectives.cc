// The Accelerator's collectives over values.
#include "accelerator/collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/nested.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "comm/flight_recorder.h"
#include "tensors/tensor_ops.h"

namespace coupler {

std::optional<detail::BatchSamples> Accelerator::Impl::batch_samples() const {
  const auto loader = current_loader();
  if (loader == nullptr) return std::nullopt;
  return detail::BatchSamples{loader->batch_samples(), loader->own_samples()};
}

at::Tensor Accelerator::gather(const at::Tensor& tensor, CallSite) {
  return gather_nested(detail::view_of(tensor))[0];
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, ReduceOp reduction, double scale,
                               CallSite) {
  return reduce_nested(detail::view_of(tensor), reduction, scale)[0];
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int from, CallSite) {
  return broadcast_nested(detail::view_of(tensor), from)[0];
}

std::vector<at::Tensor> Accelerator::gather_nested(const detail::NestedView& value) {
  return gather_leaves(*impl_->comm, value);
}

std::vector<at::Tensor> Accelerator::gather_metrics(const detail::NestedView& value) {
  return gather_own_rows(*impl_->comm, value, impl_->batch_samples());
}

std::vector<at::Tensor> Accelerator::reduce_nested(const detail::NestedView& value,
                                                   ReduceOp reduction, double scale) {
  return reduce_leaves(*impl_->comm, value, reduction, scale);
}

std::vector<at::Tensor> Accelerator::broadcast_nested(const detail::NestedView& value, int from) {
  return broadcast_leaves(*impl_->comm, value, from);
}

std::vector<at::Tensor> Accelerator::pad_nested(const detail::NestedView& value, int64_t dim,
                                                const at::Scalar& pad_index, bool pad_first) {
  return pad_leaves(*impl_->comm, value, dim, pad_index, pad_first);
}

void Accelerator::set_trigger() { impl_->trigger = true; }

bool Accelerator::check_trigger(CallSite) {
  const double any = tensors::all_reduce_number(*impl_->comm, impl_->trigger ? 1 : 0, DB_MAX);
  impl_->trigger = false;
  return any != 0;
}

void Accelerator::wait_for_everyone(CallSite) {
  db_op op{};
  op.kind = DB_BARRIER;
  op.dtype = DB_U8;
  op.memory = DB_MEMORY_HOST;
  impl_->comm->run(op);
}

// What a collective requires of each leaf of a nested structure. Pure functions. A violation is
// returned, not thrown, since the other ranks must learn of it first
// (accelerator/consistency_check.h).

namespace {

// The problem of the first leaf that cannot be sent or for which `check` throws an Error. The
// message names operation and leaf. Undefined leaves are not sent, so they are not checked.
std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check = {});

std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check) {
  for (size_t i = 0; i < value.leaves.size(); ++i) {
    const at::Tensor& leaf = value.leaves[i];
    if (!leaf.defined()) continue;
    const auto problem = [&](ErrorCode code, const std::string& text) {
      const std::string path = "value" + detail::describe_leaves(value)[i].path;
      return Error(code, fmt::format("{}: {}: {}", operation, path, text),
                   {.rank = -1, .subject = path, .hint = {}});
    };
    try {
      tensors::require_dense(leaf);
      tensors::to_db_dtype(leaf.scalar_type());
      if (check) check(leaf);
    } catch (const Error& error) {
      return problem(error.code(), error.what());
    }
  }
  return std::nullopt;
}

}  // namespace

// Gathering: concatenates rows in rank order, either all rows or each rank's own ones.

namespace {

// One leaf, its place in a message and its result.
struct Slot {
  at::Tensor input;  // contiguous, at least one dimension
  at::Tensor output;
  int64_t row_bytes = 0;
  int64_t bytes = 0;   // that each rank sends: those of the most rows on any rank
  int64_t offset = 0;  // in the message
};

at::Tensor byte_view(const at::Tensor& contiguous) {
  return contiguous.reshape({-1}).view(at::kByte);
}

// The last step of gather_packed for tensors that are not on the CPU.
void take_on_device(const at::Tensor& received, const std::vector<Slot*>& slots,
                    const std::vector<int64_t>& rows) {
  for (const Slot* slot : slots) {
    const at::Tensor output = byte_view(slot->output);
    int64_t to = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      const int64_t bytes = rows[rank] * slot->row_bytes;
      if (bytes == 0) continue;
      output.narrow(0, to, bytes)
          .copy_(received[static_cast<int64_t>(rank)].narrow(0, slot->offset, bytes));
      to += bytes;
    }
  }
}

// Sends the slots of a message, which are all on one device, together and puts every rank's rows
// into the outputs.
void gather_packed(comm::Communicator& comm, const std::vector<Slot*>& slots,
                   const std::vector<int64_t>& rows) {
  int64_t size = 0;
  for (Slot* slot : slots) {
    slot->offset = size;
    size += slot->bytes;
  }
  const auto own = rows[static_cast<size_t>(comm.rank())];
  const auto options = at::TensorOptions(at::kByte).device(slots.front()->input.device());
  const at::Tensor sent = at::zeros({size}, options);  // zeros, so that no stray memory is sent
  for (const Slot* slot : slots) {
    if (own == 0) break;
    const int64_t bytes = own * slot->row_bytes;
    if (sent.is_cpu()) {
      std::memcpy(sent.mutable_data_ptr<uint8_t>() + slot->offset, slot->input.const_data_ptr(),
                  static_cast<size_t>(bytes));
    } else {
      sent.narrow(0, slot->offset, bytes).copy_(byte_view(slot->input).narrow(0, 0, bytes));
    }
  }
  const at::Tensor received = at::empty({comm.size(), size}, options);
  comm.run(tensors::all_gather_op(sent, received));
  if (!sent.is_cpu()) {
    take_on_device(received, slots, rows);
    return;
  }
  for (const Slot* slot : slots) {
    auto* to = static_cast<uint8_t*>(slot->output.mutable_data_ptr());
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto bytes = static_cast<size_t>(rows[static_cast<size_t>(rank)] * slot->row_bytes);
      if (bytes == 0) continue;
      std::memcpy(to, received.const_data_ptr<uint8_t>() + rank * size + slot->offset, bytes);
      to += bytes;
    }
  }
}

// rows[r]: how many of each leaf's first rows count on rank r. Empty: all rows, equally many on
// every rank.
std::vector<at::Tensor> gather_rows(comm::Communicator& comm, const detail::NestedView& value,
                                    const std::vector<int64_t>& rows) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> result(value.leaves.size());
  std::vector<Slot> slots;
  slots.reserve(result.size());
  for (size_t i = 0; i < result.size(); ++i) {
    if (!value.leaves[i].defined()) continue;
    Slot slot;
    slot.input = value.leaves[i].detach().contiguous();
    if (slot.input.dim() == 0) slot.input = slot.input.view({1});
    const int64_t all = slot.input.size(0);
    const int64_t most = rows.empty() ? all : *std::max_element(rows.begin(), rows.end());
    std::vector<int64_t> shape = slot.input.sizes().vec();
    shape[0] =
        rows.empty() ? all * comm.size() : std::accumulate(rows.begin(), rows.end(), int64_t{0});
    slot.output = result[i] = at::empty(shape, slot.input.options().requires_grad(false));
    slot.row_bytes = std::accumulate(shape.begin() + 1, shape.end(), slot.input.element_size(),
                                     std::multiplies<>());
    slot.bytes = most * slot.row_bytes;
    if (slot.bytes > 0) slots.push_back(std::move(slot));
  }

  const bool even =
      std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) == rows.end();
  const size_t small = static_cast<size_t>(std::count_if(
      slots.begin(), slots.end(), [](const Slot& slot) { return slot.bytes <= kPackUpTo; }));
  std::map<c10::DeviceType, std::vector<Slot*>> packed;
  for (Slot& slot : slots) {
    if (slot.bytes <= kPackUpTo && small > 1) {
      packed[slot.input.device().type()].push_back(&slot);
    } else if (even) {
      const at::Tensor sent = rows.empty() ? slot.input : slot.input.narrow(0, 0, rows[0]);
      comm.run(tensors::all_gather_op(sent, slot.output));
    } else {
      gather_packed(comm, {&slot}, rows);
    }
  }
  // If all ranks have the same number of rows, each leaf is sent as a single row of bytes.
  for (const auto& [device, message] : packed) {
    if (rows.empty()) {
      for (Slot* slot : message) slot->row_bytes = slot->bytes;
      gather_packed(comm, message, std::vector<int64_t>(static_cast<size_t>(comm.size()), 1));
    } else {
      gather_packed(comm, message, rows);
    }
  }
  return result;
}

// The problem if the leaves do not have one row for each of the batch's samples.
std::optional<Error> rows_problem(const std::string& operation, const detail::NestedView& value,
                                  const detail::BatchSamples& samples) {
  std::optional<int64_t> rows;
  return problem_of(operation, value, [&](const at::Tensor& leaf) {
    if (leaf.dim() == 0) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "a scalar is not a per-sample value, and an average of unequal batches is wrong",
          {.rank = -1,
           .subject = {},
           .hint = "gather per-sample values (reduction \"none\"), or use gather or reduce for "
                   "per-process values"});
    }
    if (!samples.fits(leaf.size(0))) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("dimension 0 is {}, but this rank's batch has {} samples, {} of them its own",
                      leaf.size(0), samples.all, samples.own),
          {.rank = -1, .subject = {}, .hint = "make dimension 0 the samples"});
    }
    if (rows.value_or(leaf.size(0)) != leaf.size(0)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("dimension 0 is {}, but that of an earlier leaf is {}", leaf.size(0), *rows),
          {.rank = -1, .subject = {}, .hint = "make dimension 0 the samples"});
    }
    rows = leaf.size(0);
  });
}

}  // namespace

std::vector<at::Tensor> gather_leaves(comm::Communicator& comm, const detail::NestedView& value) {
  check_consistency(
      comm, {.operation = "gather", .value = &value, .problem = problem_of("gather", value)});
  return gather_rows(comm, value, {});
}

std::vector<at::Tensor> gather_own_rows(comm::Communicator& comm, const detail::NestedView& value,
                                        const std::optional<detail::BatchSamples>& samples) {
  const std::string name = "gather_for_metrics";
  if (!samples) {
    check_consistency(comm, {.operation = name + " outside of a loop",
                             .value = &value,
                             .problem = problem_of(name, value)});
    return gather_rows(comm, value, {});
  }
  return gather_rows(comm, value,
                     check_consistency(comm, {.operation = name,
                                              .value = &value,
                                              .same = SameSizes::kButRows,
                                              .number = samples->own,
                                              .problem = rows_problem(name, value, *samples)}));
}

// Reducing, broadcasting and padding the leaves of nested structures.

namespace {

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

// New contiguous tensors that a collective may overwrite.
std::vector<at::Tensor> copies_of(const detail::NestedView& value) {
  std::vector<at::Tensor> result;
  result.reserve(value.leaves.size());
  for (const at::Tensor& leaf : value.leaves) {
    result.push_back(leaf.defined() ? leaf.detach().clone(at::MemoryFormat::Contiguous)
                                    : at::Tensor());
  }
  return result;
}

// Calls small with the tensors that are worth packing, and large with each other one. Skips empty
// tensors, which have nothing to send.
template <class Small, class Large>
void by_size(const std::vector<at::Tensor>& tensors, Small small, Large large) {
  std::vector<at::Tensor> packed;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (static_cast<int64_t>(tensor.nbytes()) <= kPackUpTo) {
      packed.push_back(tensor);
    } else {
      large(tensor);
    }
  }
  if (!packed.empty()) small(packed);
}

std::string_view name_of(ReduceOp reduction) {
  return reduction == ReduceOp::kMean ? "mean" : comm::reduce_name(to_db_reduce(reduction));
}

void require_reducible(comm::Communicator& comm, const at::Tensor& leaf, ReduceOp reduction,
                       double scale) {
  const auto refuse = [&](const std::string& text, const char* hint) {
    throw Error(ErrorCode::kUnsupported, text, {.rank = -1, .subject = {}, .hint = hint});
  };
  const char* type = toString(leaf.scalar_type());
  if (scale != 1.0 && !leaf.is_floating_point()) {
    refuse(fmt::format("a {} tensor cannot be scaled by {}", type, scale),
           "convert it to a floating type first");
  }
  if (reduction == ReduceOp::kMean && leaf.scalar_type() == at::kBool) {
    refuse("the mean of Bool is not defined", "convert it to a floating type first");
  }
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = tensors::to_db_dtype(leaf.scalar_type());
  op.reduce = to_db_reduce(reduction);
  op.count = static_cast<uint64_t>(leaf.numel());
  op.memory = tensors::memory_of(leaf.device());
  if (!comm.supports(op)) {
    refuse(fmt::format("the backend '{}' does not support {} of {}", comm.backend(),
                       name_of(reduction), type),
           "convert it to another type first");
  }
}

// Returns dim counted from the front; empty if the leaf has no such dimension.
std::optional<int64_t> joined_dimension(const at::Tensor& leaf, int64_t dim) {
  if (!leaf.defined() || dim >= leaf.dim() || dim < -leaf.dim()) return std::nullopt;
  return dim < 0 ? dim + leaf.dim() : dim;
}

// Throws if the leaf's type cannot hold the value.
at::Tensor padding_of(const at::Tensor& leaf, const at::Scalar& pad_index) {
  const double wanted = pad_index.toDouble();
  try {
    at::Tensor padding = at::scalar_tensor(pad_index, leaf.options().requires_grad(false));
    if (leaf.is_floating_point() || padding.item().toDouble() == wanted) return padding;
  } catch (const std::exception&) {  // LibTorch: overflow; the Error below has details
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("it cannot be padded with {}, which is not a value of type {}", wanted,
                          toString(leaf.scalar_type())),
              {.rank = -1, .subject = {}, .hint = "give a pad_index that the type can hold"});
}

}  // namespace

std::vector<at::Tensor> reduce_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                      ReduceOp reduction, double scale) {
  at::NoGradGuard no_grad;
  std::string operation = fmt::format("reduce({}", name_of(reduction));
  operation += scale == 1.0 ? ")" : fmt::format(", scale {})", scale);
  check_consistency(comm, {.operation = operation,
                           .value = &value,
                           .problem = problem_of(operation, value, [&](const at::Tensor& leaf) {
                             require_reducible(comm, leaf, reduction, scale);
                           })});
  std::vector<at::Tensor> result = copies_of(value);
  const db_reduce reduce = to_db_reduce(reduction);
  by_size(
      result, [&](const auto& small) { tensors::all_reduce_coalesced(comm, small, reduce); },
      [&](const at::Tensor& large) { comm.run(tensors::all_reduce_op(large, reduce)); });
  if (scale != 1.0) {
    for (at::Tensor& leaf : result) {
      if (leaf.defined()) leaf.mul_(scale);
    }
  }
  return result;
}

std::vector<at::Tensor> broadcast_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                         int from) {
  at::NoGradGuard no_grad;
  const std::string operation = fmt::format("broadcast(from {})", from);
  auto problem = problem_of(operation, value);
  if (from < 0 || from >= comm.size()) {
    problem.emplace(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: there is no such rank in a world of {}", operation, comm.size()),
        ErrorDetail{-1, operation, "name a rank from 0 to world - 1"});
  }
  check_consistency(comm, {.operation = operation, .value = &value, .problem = std::move(problem)});
  std::vector<at::Tensor> result = copies_of(value);
  by_size(
      result, [&](const auto& small) { tensors::broadcast_coalesced(comm, small, from); },
      [&](const at::Tensor& large) { comm.run(tensors::broadcast_op(large, from)); });
  return result;
}

std::vector<at::Tensor> pad_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                   int64_t dim, const at::Scalar& pad_index, bool pad_first) {
  at::NoGradGuard no_grad;
  const std::string operation = fmt::format("pad_across_processes(dim {})", dim);
  check_consistency(comm, {.operation = operation,
                           .value = &value,
                           .same = SameSizes::kNone,
                           .problem = problem_of(operation, value, [&](const at::Tensor& leaf) {
                             padding_of(leaf, pad_index);
                           })});
  std::vector<at::Tensor> result = copies_of(value);
  std::vector<int64_t> most;
  for (const at::Tensor& leaf : result) {
    const auto along = joined_dimension(leaf, dim);
    most.push_back(along ? leaf.size(*along) : 0);
  }
  if (most.empty()) return result;
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_I64;
  op.reduce = DB_MAX;
  op.send = op.recv = most.data();
  op.count = most.size();
  comm.run(op);
  for (size_t i = 0; i < result.size(); ++i) {
    at::Tensor& leaf = result[i];
    const auto along = joined_dimension(leaf, dim);
    if (!along || leaf.size(*along) == most[i]) continue;
    std::vector<int64_t> shape = leaf.sizes().vec();
    shape[static_cast<size_t>(*along)] = most[i];
    at::Tensor padded =
        padding_of(leaf, pad_index).expand(shape).clone(at::MemoryFormat::Contiguous);
    const int64_t start = pad_first ? most[i] - leaf.size(*along) : 0;
    padded.narrow(*along, start, leaf.size(*along)).copy_(leaf);
    leaf = std::move(padded);
  }
  return result;
}

}  // namespace coupler
