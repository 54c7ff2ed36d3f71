// The public module of coupler/mixture_of_experts.h.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/mixture_of_experts.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "expert_parallel/divide_experts.h"
#include "tensors/autocast_state.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

void require_option(bool valid, const char* option, const std::string& problem) {
  if (valid) return;
  fail_argument(fmt::format("MixtureOfExperts: {}", problem), option,
                "set the options of MixtureOfExpertsOptions to sizes that fit each other");
}

void check(const MixtureOfExpertsOptions& options) {
  require_option(options.features > 0, "features",
                 fmt::format("features is {}, not positive", options.features));
  require_option(options.inner > 0, "inner",
                 fmt::format("inner is {}, not positive", options.inner));
  require_option(options.experts > 0, "experts",
                 fmt::format("experts is {}, not positive", options.experts));
  require_option(options.top_k >= 1 && options.top_k <= options.experts, "top_k",
                 fmt::format("top_k is {}, but must be 1 to {}, the number of experts",
                             options.top_k, options.experts));
  require_option(options.capacity_factor == 0 || options.capacity_factor >= 1, "capacity_factor",
                 fmt::format("capacity_factor is {}, but must be 0 (no limit) or at least 1",
                             options.capacity_factor));
}

// The type in which the router chooses.
at::ScalarType router_type(const at::Tensor& x) {
  return c10::elementSize(x.scalar_type()) < 4 ? at::kFloat : x.scalar_type();
}

// As the experts' first product would convert them, so that they travel in autocast's type.
at::Tensor as_products_need(const at::Tensor& rows) {
  const c10::DeviceType device = rows.device().type();
  if (!at::autocast::is_autocast_enabled(device) || rows.scalar_type() == at::kDouble) return rows;
  return rows.to(at::autocast::get_autocast_dtype(device));
}

int64_t capacity_of(const MixtureOfExpertsOptions& options, int64_t tokens) {
  if (options.capacity_factor == 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(
      std::ceil(options.capacity_factor * static_cast<double>(tokens * options.top_k) /
                static_cast<double>(options.experts)));
}

}  // namespace

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options)
    : options_(options) {
  check(options);
  const int64_t products = options.activation == ExpertActivation::kSwiGlu ? 2 : 1;
  router = register_module(
      "router",
      torch::nn::Linear(torch::nn::LinearOptions(options.features, options.experts).bias(false)));
  up = register_parameter("up",
                          at::empty({options.experts, products * options.inner, options.features}));
  down = register_parameter("down", at::empty({options.experts, options.features, options.inner}));
  reset_parameters();
}

void MixtureOfExpertsImpl::reset_parameters() {
  router->reset_parameters();
  // torch::nn::Linear's bound, by the inputs of each expert's matrix.
  for (const at::Tensor& weight : {up, down}) {
    const double bound = 1 / std::sqrt(static_cast<double>(weight.size(2)));
    torch::nn::init::uniform_(weight, -bound, bound);
  }
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& x) {
  if (!x.is_floating_point() || x.dim() == 0 || x.size(-1) != options_.features) {
    fail_argument(fmt::format("MixtureOfExperts: x is a tensor of {} and shape [{}], not floating-"
                              "point of [..., {}]",
                              x.dtype().name(), fmt::join(x.sizes(), ", "), options_.features),
                  "x", "pass tokens with as many features as MixtureOfExpertsOptions has");
  }
  const at::Tensor tokens = x.reshape({-1, options_.features});
  at::Tensor weights, chosen;  // [tokens, top_k]
  expert_parallel::Routing routing;
  {
    const auto plain = tensors::outside_autocast();
    const at::ScalarType type = router_type(x);
    const at::Tensor probabilities =
        at::linear(tokens.to(type), router->weight.to(type)).softmax(-1);
    std::tie(weights, chosen) = probabilities.topk(options_.top_k, -1);
    if (options_.normalize_weights) weights = weights / weights.sum(-1, /*keepdim=*/true);
    routing = ranks_ != nullptr && ranks_->made_up
                  ? expert_parallel::assume_balance(chosen, options_.experts)
                  : expert_parallel::route(chosen, options_.experts,
                                           capacity_of(options_, tokens.size(0)));
    note_balance(probabilities, chosen, routing);
  }
  dropped_choices_ = routing.dropped;
  const at::Tensor token_of = routing.choices.div(options_.top_k, "floor");
  at::Tensor rows = as_products_need(tokens.index_select(0, token_of));
  if (const auto* group = ranks_ == nullptr ? nullptr : &ranks_->experts; group && *group) {
    const auto arrivals = expert_parallel::arrivals_of(routing, *group, rows);
    rows = expert_parallel::exchange_rows(rows, arrivals.sent, arrivals.received, *group);
    rows = run_experts(rows.index_select(0, arrivals.by_expert), arrivals.rows);
    rows = expert_parallel::exchange_rows(rows.index_select(0, arrivals.by_rank), arrivals.received,
                                          arrivals.sent, *group);
  } else {
    rows = run_experts(rows, routing.rows);
  }
  // Choices that found their expert full keep zeros.
  const at::Tensor results = at::zeros({chosen.numel(), options_.features}, rows.options())
                                 .index_copy(0, routing.choices, rows)
                                 .view({-1, options_.top_k, options_.features});
  return (results * weights.unsqueeze(-1)).sum(1).to(x.scalar_type()).view(x.sizes());
}

const at::Tensor& MixtureOfExpertsImpl::balance_loss() const {
  const bool wants_gradient =
      at::GradMode::is_enabled() && is_training() && router->weight.requires_grad();
  if (wants_gradient && balance_loss_.defined() && !balance_loss_.requires_grad()) {
    fail_usage(
        "balance_loss: the last forward of this MixtureOfExperts kept nothing for backward, "
        "so its balance loss has no gradient",
        "MixtureOfExperts",
        "leave it out of memory.activation_checkpointing, or ask for the value within "
        "torch::NoGradGuard");
  }
  return balance_loss_;
}

at::Tensor MixtureOfExpertsImpl::run_experts(const at::Tensor& rows,
                                             at::IntArrayRef rows_of_experts) const {
  const std::vector<at::Tensor> inputs = rows.split_with_sizes(rows_of_experts);
  // Once for all experts: selecting one after another would make a gradient of all for each.
  const std::vector<at::Tensor> ups = up.unbind(), downs = down.unbind();
  std::vector<at::Tensor> results;
  for (size_t e = 0; e < inputs.size(); ++e) {
    at::Tensor inner = at::linear(inputs[e], ups[e]);
    switch (options_.activation) {
      case ExpertActivation::kSwiGlu: {
        const auto halves = inner.chunk(2, -1);
        inner = at::silu(halves[0]) * halves[1];
        break;
      }
      case ExpertActivation::kGelu:
        inner = at::gelu(inner);
        break;
      case ExpertActivation::kRelu:
        inner = at::relu(inner);
        break;
    }
    results.push_back(at::linear(inner, downs[e]));
  }
  return at::cat(results);
}

void MixtureOfExpertsImpl::note_balance(const at::Tensor& probabilities, const at::Tensor& chosen,
                                        const expert_parallel::Routing& routing) {
  at::Tensor counts = routing.assumed ? at::tensor(routing.rows, at::kLong)
                                      : at::bincount(chosen.flatten(), {}, options_.experts);
  if (is_training() && ranks_ != nullptr && ranks_->samples != nullptr) {
    // In new memory, which recomputed activations keep: they would count again, but not sum.
    const at::Tensor sum = at::empty(counts.sizes(), counts.options()).copy_(counts);
    ranks_->samples->run(tensors::all_reduce_op(sum, DB_SUM));
    counts = sum;
  }
  expert_tokens_ = counts;
  const at::Tensor share = counts.to(probabilities.scalar_type()) / counts.sum().clamp_min(1);
  const at::Tensor mean =
      probabilities.sum(0) / static_cast<double>(std::max<int64_t>(probabilities.size(0), 1));
  balance_loss_ = static_cast<double>(options_.experts) * (share * mean).sum();
}

}  // namespace coupler
