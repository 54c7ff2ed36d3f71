// Training on W ranks equals training one process on the joined batch: gradients at every step and
// weights after 20, for each optimizer, with tied, frozen and mixed-type parameters.
#include <coupler/optimizers.h>

#include <memory>

#include "check.h"

namespace {

constexpr int kSteps = 20;
constexpr int64_t kRows = 24;  // divisible by world sizes 1 to 4

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

Net copy_of(Net& net) {
  torch::NoGradGuard no_grad;
  Net copy(net->scale.scalar_type() == torch::kFloat);
  for (auto& parameter : copy->named_parameters()) {
    parameter.value().copy_(net->named_parameters()[parameter.key()]);
  }
  return copy;
}

void expect_close(const torch::Tensor& ours, const torch::Tensor& reference, double tolerance,
                  const std::string& what) {
  const double difference = (ours - reference).abs().max().item<double>();
  EXPECT(difference <= tolerance, what + " differs by " + std::to_string(difference));
}

void train_both(coupler::Accelerator& accelerator, const MakeOptimizer& make,
                const std::string& description, bool mixed = false) {
  const double tolerance = mixed ? 1e-6 : 1e-10;
  torch::manual_seed(accelerator.rank());  // prepare synchronizes the ranks
  Net model(mixed);
  auto optimizer = make(trainable(model));
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  EXPECT(opt.description().find(description) != std::string::npos,
         "the optimizer runs as " + opt.description());
  for (auto& parameter : net->parameters()) {
    expect_same_everywhere(accelerator, parameter, "a prepared parameter");
  }
  Net reference = copy_of(net);
  auto reference_optimizer = make(trainable(reference));

  for (int step = 0; step < kSteps; ++step) {
    const Batch joined = joined_batch(step, kRows);
    reference_optimizer->zero_grad();
    loss_of(reference, joined).backward();
    const double reference_norm = torch::nn::utils::clip_grad_norm_(trainable(reference), 0.5);
    reference_optimizer->step();

    opt.zero_grad();
    accelerator.backward(
        loss_of(net, own_part(joined, accelerator.rank(), accelerator.world_size())));
    const double norm = accelerator.clip_grad_norm(net, 0.5);
    EXPECT(std::abs(norm - reference_norm) < 1e-5, "the gradient norm is " + std::to_string(norm) +
                                                       ", expected " +
                                                       std::to_string(reference_norm));
    for (size_t i = 0; i < trainable(net).size(); ++i) {
      expect_close(accelerator.gradient(trainable(net)[i]), trainable(reference)[i].grad(),
                   tolerance, "step " + std::to_string(step) + ", gradient " + std::to_string(i));
    }
    opt.step();
  }
  for (size_t i = 0; i < trainable(net).size(); ++i) {
    expect_close(trainable(net)[i], trainable(reference)[i], tolerance,
                 "weight " + std::to_string(i));
    expect_same_everywhere(accelerator, trainable(net)[i], "weight " + std::to_string(i));
  }
}

template <class Optimizer, class Options>
Check parity(const char* name, const Options& options, const char* description) {
  return {name, [=](coupler::Accelerator& accelerator) {
            train_both(
                accelerator,
                [&](std::vector<torch::Tensor> parameters) {
                  return std::make_unique<Optimizer>(std::move(parameters), options);
                },
                description);
          }};
}

// Two parameter groups, each with its own rate.
void two_groups(coupler::Accelerator& accelerator) {
  train_both(
      accelerator,
      [](const std::vector<torch::Tensor>& parameters) {
        auto fast = std::make_unique<torch::optim::AdamWOptions>(1e-2);
        auto slow = std::make_unique<torch::optim::AdamWOptions>(1e-4);
        return std::make_unique<torch::optim::AdamW>(
            std::vector<torch::optim::OptimizerParamGroup>{
                {{parameters[0], parameters[2]}, std::move(fast)},
                {{parameters[1], parameters[3]}, std::move(slow)}},
            torch::optim::AdamWOptions(1e-3));
      },
      "fused AdamW");
}

void mixed_types(coupler::Accelerator& accelerator) {
  train_both(
      accelerator,
      [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                     torch::optim::AdamWOptions(1e-2));
      },
      "fused AdamW", /*mixed=*/true);
}

}  // namespace

std::vector<Check> parity_checks() {
  using namespace torch::optim;
  return {
      parity<SGD>("sgd", SGDOptions(0.1), "fused SGD"),
      parity<SGD>("sgd_momentum", SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01),
                  "fused SGD"),
      parity<SGD>("sgd_nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true), "fused SGD"),
      parity<Adam>("adam", AdamOptions(1e-2).weight_decay(0.01), "fused Adam"),
      parity<Adam>("adam_amsgrad", AdamOptions(1e-2).amsgrad(true), "fused Adam"),
      parity<AdamW>("adamw", AdamWOptions(1e-2), "fused AdamW"),
      parity<AdamW>("adamw_amsgrad", AdamWOptions(1e-2).amsgrad(true), "fused AdamW"),
      parity<RMSprop>("rmsprop", RMSpropOptions(1e-2), "unmodified"),
      parity<coupler::NAdam>("nadam", coupler::NAdamOptions(1e-2).weight_decay(0.01), "fused"),
      parity<coupler::RAdam>("radam", coupler::RAdamOptions(1e-2), "fused"),
      parity<coupler::Adamax>("adamax", coupler::AdamaxOptions(1e-2), "fused"),
      parity<coupler::Lion>("lion", coupler::LionOptions(1e-3).weight_decay(0.1), "fused"),
      parity<coupler::ScheduleFreeAdamW>(
          "schedule_free", coupler::ScheduleFreeAdamWOptions(1e-2).warmup_steps(3), "fused"),
      {"two_groups", two_groups},
      {"mixed_types", mixed_types},
  };
}
