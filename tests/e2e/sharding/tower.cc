#include "tower.h"

#include <c10/core/DispatchKey.h>

TowerImpl::TowerImpl(int64_t width)
    : tokens(register_module("tokens", torch::nn::Embedding(11, 12))),
      in(register_module("in", torch::nn::Linear(12, width))),
      mid(register_module("mid", torch::nn::Linear(width, width))),
      out(register_module("out", torch::nn::Linear(width, 12))),
      norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
      head(register_module("head", torch::nn::Sequential())),
      scale(register_buffer("scale", torch::full({3}, 1.5))) {
  head->register_parameter("weight", tokens->weight);
  mid->bias.requires_grad_(false);
}

torch::Tensor TowerImpl::forward(const torch::Tensor& ids) {
  auto hidden = torch::relu(norm(in(tokens(ids).sum(1))));
  hidden = out(hidden + torch::tanh(mid(hidden)));
  return torch::linear(hidden, tokens->weight) * scale[0];
}

std::vector<torch::Tensor> distinct(Tower& net) {
  std::vector<torch::Tensor> result;
  for (const auto& parameter : net->named_parameters()) {
    if (parameter.key() != "head.weight") result.push_back(parameter.value());
  }
  return result;
}

Tower copy_of(Tower& net) {
  torch::NoGradGuard no_grad;
  Tower copy(net->mid->weight.size(0));
  auto values = net->named_parameters();
  for (auto& parameter : copy->named_parameters()) {
    parameter.value().copy_(values[parameter.key()]);
  }
  return copy;
}

bool is_gathered() { return check_options().expect == "gathered"; }
bool is_divided() { return is_gathered() || check_options().expect == "divided"; }

void expect_kind(const torch::Tensor& parameter, torch::optim::Optimizer& optimizer) {
  // The dispatch key that the intercept uses; see host/torch/residency/intercept.h.
  const bool gathered = parameter.key_set().has(c10::DispatchKey::DeferredInit);
  const auto& groups = optimizer.param_groups();
  const bool divided = groups[0].params().empty() ||
                       groups[0].params()[0].dim() != parameter.dim() ||
                       groups[0].params()[0].numel() != parameter.numel();
  const std::string& expected = check_options().expect;
  EXPECT(expected == "gathered" || expected == "divided" || expected == "replicated",
         "--expect is '" + expected + "', not gathered, divided or replicated");
  EXPECT(gathered == is_gathered(), "the model's parameters are not '" + expected + "'");
  EXPECT(divided == is_divided(), "the optimizer's parameters are not '" + expected + "'");
}

double mean_over_ranks(coupler::Accelerator& accelerator, const torch::Tensor& loss) {
  return accelerator.reduce(loss.detach().to(torch::kDouble), coupler::ReduceOp::kMean)
      .item<double>();
}

void expect_relative(double ours, double reference, double bound, const std::string& what) {
  EXPECT(std::abs(ours - reference) <= bound * std::abs(reference),
         what + " is " + std::to_string(ours) + ", expected " + std::to_string(reference));
}

void expect_near(const torch::Tensor& ours, const torch::Tensor& reference, double bound,
                 const std::string& what) {
  EXPECT(ours.sizes() == reference.sizes(), what + " has a different shape");
  const double difference = (ours - reference).abs().max().item<double>();
  // Rounding grows with the values, and the order of sums depends on the CPU's vector width.
  const double largest = reference.abs().max().item<double>();
  EXPECT(difference <= bound * std::max(1.0, largest),
         what + " differs by " + std::to_string(difference) + ", its largest element is " +
             std::to_string(largest));
}

void expect_near_models(coupler::Accelerator& accelerator, Tower& ours, Tower& reference,
                        double bound) {
  torch::NoGradGuard no_grad;
  auto expected = reference->named_parameters();
  size_t seen = 0;
  accelerator.for_each_tensor(ours, [&](const std::string& name, const torch::Tensor& value) {
    if (const auto* const parameter = expected.find(name)) {
      expect_near(value, *parameter, bound, name);
      ++seen;
    }
  });
  EXPECT(seen == distinct(ours).size(), "for_each_tensor omitted parameters");
}

Pair::Pair(coupler::Accelerator& given, const Make& make)
    : accelerator(given), net(nullptr), reference(nullptr) {
  torch::manual_seed(accelerator.rank());  // prepare synchronizes the ranks
  net = Tower();
  torch_optimizer = make(net->parameters());
  auto prepared = accelerator.prepare(net, *torch_optimizer);
  optimizer = std::make_unique<coupler::Optimizer>(std::get<1>(prepared));
  expect_kind(net->tokens->weight, *torch_optimizer);
  reference = copy_of(net);
  reference_optimizer = make(distinct(reference));
}

Pair::Losses Pair::step(int number, const std::function<void(bool)>& between) {
  const Batch joined = joined_batch(number, kTowerRows);
  reference_optimizer->zero_grad();
  const auto expected = tower_loss(reference, joined);
  expected.backward();
  if (between) between(false);
  reference_optimizer->step();

  optimizer->zero_grad();
  const auto loss = tower_loss(net, own_part(joined, accelerator.rank(), accelerator.world_size()));
  accelerator.backward(loss);
  if (between) between(true);
  optimizer->step();
  return {mean_over_ranks(accelerator, loss), expected.item<double>()};
}

Pair::Make adamw(double rate) {
  return [rate](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(rate).eps(1e-4));
  };
}

std::vector<Check> all_checks() {
  std::vector<Check> result;
  for (const auto& list : {learning_checks(), model_checks(), access_checks(), misuse_checks()}) {
    result.insert(result.end(), list.begin(), list.end());
  }
  return result;
}
