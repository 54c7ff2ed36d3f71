// Reducing, broadcasting and padding the leaves of nested structures.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "accelerator/agreement.h"
#include "accelerator/leaf_rules.h"
#include "accelerator/nested_collectives.h"
#include "comm/fingerprint.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

db_reduce to_db_reduce(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return DB_SUM;
    case Reduction::kMean:
      return DB_AVG;
    case Reduction::kMin:
      return DB_MIN;
    case Reduction::kMax:
      return DB_MAX;
    case Reduction::kProduct:
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

std::string_view name_of(Reduction reduction) {
  return reduction == Reduction::kMean ? "mean" : reduce_name(to_db_reduce(reduction));
}

void require_reducible(Communicator& comm, const at::Tensor& leaf, Reduction reduction,
                       double scale) {
  const auto refuse = [&](const std::string& text, const char* hint) {
    throw Error(ErrorCode::kUnsupported, text, {.rank = -1, .subject = {}, .hint = hint});
  };
  const char* type = toString(leaf.scalar_type());
  if (scale != 1.0 && !leaf.is_floating_point()) {
    refuse(fmt::format("a {} tensor cannot be scaled by {}", type, scale),
           "convert it to a floating type first");
  }
  if (reduction == Reduction::kMean && leaf.scalar_type() == at::kBool) {
    refuse("the mean of Bool is not defined", "convert it to a floating type first");
  }
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = to_db_dtype(leaf.scalar_type());
  op.reduce = to_db_reduce(reduction);
  op.count = static_cast<uint64_t>(leaf.numel());
  op.memory = memory_of(leaf.device());
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

std::vector<at::Tensor> reduce_leaves(Communicator& comm, const detail::NestedView& value,
                                      Reduction reduction, double scale) {
  at::NoGradGuard no_grad;
  std::string operation = fmt::format("reduce({}", name_of(reduction));
  operation += scale == 1.0 ? ")" : fmt::format(", scale {})", scale);
  agree(comm, {.operation = operation,
               .value = &value,
               .problem = problem_of(operation, value, [&](const at::Tensor& leaf) {
                 require_reducible(comm, leaf, reduction, scale);
               })});
  std::vector<at::Tensor> result = copies_of(value);
  const db_reduce reduce = to_db_reduce(reduction);
  by_size(
      result, [&](const auto& small) { all_reduce_coalesced(comm, small, reduce); },
      [&](const at::Tensor& large) { comm.run(all_reduce_op(large, reduce)); });
  if (scale != 1.0) {
    for (at::Tensor& leaf : result) {
      if (leaf.defined()) leaf.mul_(scale);
    }
  }
  return result;
}

std::vector<at::Tensor> broadcast_leaves(Communicator& comm, const detail::NestedView& value,
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
  agree(comm, {.operation = operation, .value = &value, .problem = std::move(problem)});
  std::vector<at::Tensor> result = copies_of(value);
  by_size(
      result, [&](const auto& small) { broadcast_coalesced(comm, small, from); },
      [&](const at::Tensor& large) { comm.run(broadcast_op(large, from)); });
  return result;
}

std::vector<at::Tensor> pad_leaves(Communicator& comm, const detail::NestedView& value, int64_t dim,
                                   const at::Scalar& pad_index, bool pad_first) {
  at::NoGradGuard no_grad;
  const std::string operation = fmt::format("pad_across_processes(dim {})", dim);
  agree(comm, {.operation = operation,
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
