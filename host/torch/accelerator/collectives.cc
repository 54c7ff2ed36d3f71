// The Accelerator's collectives over values.
#include "accelerator/collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/nested.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "base/error.h"
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
  return gather_own_rows(*impl_->sample_comm, value, impl_->batch_samples());
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

void Accelerator::wait_for_everyone(CallSite) { impl_->comm->run(tensors::host_op(DB_BARRIER)); }

// What a collective requires of each leaf of a nested structure. Pure functions. A violation is
// returned, not thrown, since the other ranks must learn of it first
// (accelerator/consistency_check.h).

namespace {

// The problem of the first leaf that cannot be sent or for which `check` throws an Error. The
// message names operation and leaf. Undefined leaves are not sent, so they are not checked.
std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check = {}) {
  for (size_t i = 0; i < value.leaves.size(); ++i) {
    const at::Tensor& leaf = value.leaves[i];
    if (!leaf.defined()) continue;
    try {
      tensors::require_dense(leaf);
      tensors::to_db_dtype(leaf.scalar_type());
      if (check) check(leaf);
    } catch (const Error& error) {
      const std::string path = "value" + detail::describe_leaves(value)[i].path;
      return Error(error.code(), fmt::format("{}: {}: {}", operation, path, error.what()),
                   {.subject = path});
    }
  }
  return std::nullopt;
}

// Gathering: concatenates rows in rank order, either all rows or each rank's own ones.

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
    sent.narrow(0, slot->offset, bytes).copy_(byte_view(slot->input).narrow(0, 0, bytes));
  }
  const at::Tensor received = at::empty({comm.size(), size}, options);
  comm.run(tensors::all_gather_op(sent, received));
  for (const Slot* slot : slots) {
    std::vector<at::Tensor> parts;
    parts.reserve(rows.size());
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      parts.push_back(received[static_cast<int64_t>(rank)].narrow(0, slot->offset,
                                                                  rows[rank] * slot->row_bytes));
    }
    at::Tensor output = byte_view(slot->output);
    at::cat_out(output, parts);
  }
}

// rows[r]: how many of each leaf's first rows count on rank r. Empty: all rows, equally many on
// every rank; each leaf is then sent as a single row of bytes.
std::vector<at::Tensor> gather_rows(comm::Communicator& comm, const detail::NestedView& value,
                                    const std::vector<int64_t>& rows) {
  at::NoGradGuard no_grad;
  const bool whole = rows.empty();
  const auto counts = whole ? std::vector<int64_t>(static_cast<size_t>(comm.size()), 1) : rows;
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<at::Tensor> result(value.leaves.size());
  std::vector<Slot> slots;
  slots.reserve(result.size());
  for (size_t i = 0; i < result.size(); ++i) {
    if (!value.leaves[i].defined()) continue;
    Slot slot;
    slot.input = value.leaves[i].detach().contiguous();
    if (slot.input.dim() == 0) slot.input = slot.input.view({1});
    std::vector<int64_t> shape = slot.input.sizes().vec();
    slot.row_bytes = std::accumulate(shape.begin() + (whole ? 0 : 1), shape.end(),
                                     slot.input.element_size(), std::multiplies<>());
    slot.bytes = most * slot.row_bytes;
    shape[0] =
        whole ? shape[0] * comm.size() : std::accumulate(rows.begin(), rows.end(), int64_t{0});
    slot.output = result[i] = at::empty(shape, slot.input.options().requires_grad(false));
    if (slot.bytes > 0) slots.push_back(std::move(slot));
  }

  const bool even =
      static_cast<size_t>(std::count(counts.begin(), counts.end(), most)) == counts.size();
  const auto is_small = [](const Slot& slot) { return slot.bytes <= tensors::kPackUpTo; };
  const bool pack = std::count_if(slots.begin(), slots.end(), is_small) > 1;
  std::map<c10::DeviceType, std::vector<Slot*>> packed;
  for (Slot& slot : slots) {
    if (pack && is_small(slot)) {
      packed[slot.input.device().type()].push_back(&slot);
    } else if (even) {
      const at::Tensor sent = whole ? slot.input : slot.input.narrow(0, 0, most);
      comm.run(tensors::all_gather_op(sent, slot.output));
    } else {
      gather_packed(comm, {&slot}, counts);
    }
  }
  for (const auto& [device, message] : packed) gather_packed(comm, message, counts);
  return result;
}

// The problem if the leaves do not have one row for each of the batch's samples.
std::optional<Error> rows_problem(const std::string& operation, const detail::NestedView& value,
                                  const detail::BatchSamples& samples) {
  std::optional<int64_t> rows;
  return problem_of(operation, value, [&](const at::Tensor& leaf) {
    if (leaf.dim() == 0) {
      fail_argument(
          "a scalar is not a per-sample value, and an average of unequal batches is wrong", "",
          "gather per-sample values (reduction \"none\"), or use gather or reduce for "
          "per-process values");
    }
    if (!samples.fits(leaf.size(0))) {
      fail_argument(
          fmt::format("dimension 0 is {}, but this rank's batch has {} samples, {} of them its own",
                      leaf.size(0), samples.all, samples.own),
          "", "make dimension 0 the samples");
    }
    if (rows.value_or(leaf.size(0)) != leaf.size(0)) {
      fail_argument(
          fmt::format("dimension 0 is {}, but that of an earlier leaf is {}", leaf.size(0), *rows),
          "", "make dimension 0 the samples");
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

std::string_view name_of(ReduceOp reduction) {
  return reduction == ReduceOp::kMean ? "mean"
                                      : comm::reduce_name(tensors::to_db_reduce(reduction));
}

void require_reducible(comm::Communicator& comm, const at::Tensor& leaf, ReduceOp reduction,
                       double scale) {
  const auto refuse = [&](const std::string& text, const char* hint) {
    throw Error(ErrorCode::kUnsupported, text, {.hint = hint});
  };
  const char* type = toString(leaf.scalar_type());
  if (scale != 1.0 && !leaf.is_floating_point()) {
    refuse(fmt::format("a {} tensor cannot be scaled by {}", type, scale),
           "convert it to a floating type first");
  }
  if (reduction == ReduceOp::kMean && leaf.scalar_type() == at::kBool) {
    refuse("the mean of Bool is not defined", "convert it to a floating type first");
  }
  db_op op = tensors::host_op(DB_ALL_REDUCE, tensors::to_db_dtype(leaf.scalar_type()));
  op.reduce = tensors::to_db_reduce(reduction);
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
  fail_argument(fmt::format("it cannot be padded with {}, which is not a value of type {}", wanted,
                            toString(leaf.scalar_type())),
                "", "give a pad_index that the type can hold");
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
  tensors::all_reduce_coalesced(comm, result, tensors::to_db_reduce(reduction));
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
  if (from < 0 || from >= comm.size()) problem = no_such_rank(operation, comm);
  check_consistency(comm, {.operation = operation, .value = &value, .problem = std::move(problem)});
  std::vector<at::Tensor> result = copies_of(value);
  tensors::broadcast_coalesced(comm, result, from);
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
  db_op op = tensors::host_op(DB_ALL_REDUCE, DB_I64, most.data(), most.data(), most.size());
  op.reduce = DB_MAX;
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
