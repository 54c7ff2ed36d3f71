// Sequences divided over the ranks of a context group: Accelerator::context_parallel.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/context_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "context_parallel/context_attention.h"
#include "strategy/data_parallel.h"

namespace coupler {
namespace {

using context_parallel::ContextAttention;

// What the calling thread's scope does; null outside.
std::shared_ptr<ContextAttention> attention_now() {
  return std::dynamic_pointer_cast<ContextAttention>(tensors::replaced_attention());
}

std::vector<at::Tensor> own_parts_of(const std::vector<SequenceTensor>& tensors,
                                     const ContextAttention& attention) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [tensor, dim] = tensors[i];
    const std::string what = fmt::format("context_parallel: tensors[{}]", i);
    if (!tensor.defined() || tensor.requires_grad() || dim < -tensor.dim() || dim >= tensor.dim()) {
      fail_argument(
          fmt::format("{} {}", what,
                      !tensor.defined()        ? "is undefined"
                      : tensor.requires_grad() ? "requires a gradient"
                                               : fmt::format("of [{}] has no dimension {}",
                                                             fmt::join(tensor.sizes(), ", "), dim)),
          "tensors", "pass batches and positions, each with the dimension of its sequence");
    }
    parts.push_back(context_parallel::part_of(tensor, dim, attention.order(),
                                              attention.group()->size(), attention.group()->rank(),
                                              what));
  }
  return parts;
}

// Attention of one sequence needs the same weights everywhere.
void require_no_local_sgd(const std::vector<std::shared_ptr<strategy::Strategy>>& models) {
  for (const auto& model : models) {
    const auto whole = std::dynamic_pointer_cast<strategy::DataParallel>(model);
    if (whole == nullptr || !whole->trains_alone()) continue;
    fail_usage(fmt::format("context_parallel: the model '{}' is trained with LocalSGD, so the "
                           "ranks that divide a sequence have different weights",
                           model->model().name),
               "context_parallel", "train it without LocalSGD, or set parallel.context to 1");
  }
}

}  // namespace

ScopeGuard Accelerator::context_parallel(const std::vector<SequenceTensor>& tensors, CallSite) {
  if (mesh().size("context") == 1) return ScopeGuard(nullptr);
  if (tensors::replaced_attention() != nullptr) {
    fail_usage("context_parallel: another scope of it is alive", "context_parallel",
               "divide all tensors in one scope, and end it before the next");
  }
  require_no_local_sgd(impl_->models);
  if (impl_->context_comm == nullptr)
    impl_->context_comm = impl_->groups->make(groups::kContext, "attention");
  const bool ring = impl_->config.parallel.context_method == "ring";
  const auto attention = std::make_shared<ContextAttention>(
      ring ? ContextAttention::Method::kRing : ContextAttention::Method::kAllToAll,
      impl_->context_comm);
  const std::vector<at::Tensor> parts = own_parts_of(tensors, *attention);
  std::vector<std::pair<at::Tensor, at::Tensor>> whole;  // each with its values
  for (size_t i = 0; i < tensors.size(); ++i) {
    whole.emplace_back(tensors[i].tensor, tensors[i].tensor.alias());
    tensors[i].tensor.set_data(parts[i]);
  }
  tensors::replace_attention(attention);
  return ScopeGuard([whole = std::move(whole)] {
    tensors::replace_attention(nullptr);
    for (const auto& [tensor, values] : whole) tensor.set_data(values);
  });
}

at::Tensor context_positions(int64_t tokens, c10::Device device) {
  const auto attention = attention_now();
  if (attention == nullptr) return at::arange(tokens, at::TensorOptions(at::kLong).device(device));
  const int ranks = attention->group()->size();
  return context_parallel::positions_of(attention->order(), tokens * ranks, ranks,
                                        attention->group()->rank(), "context_positions")
      .to(device);
}

}  // namespace coupler
