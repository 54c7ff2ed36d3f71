// Training on a device equals training one process on the CPU on the joined batch, with any
// backend, and everything that should be on the device is there.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <coupler/coupler.h>

#include "device.h"

namespace {

using coupler::Accelerator;

constexpr int kSteps = 6;
constexpr double kTolerance = 1e-10;

torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(1e-2).weight_decay(0.01); }

// clip_to: the maximum norm; 0 does not clip.
void train(Accelerator& accelerator, int64_t window, double clip_to) {
  accelerator.set_gradient_accumulation_steps(window);
  torch::manual_seed(accelerator.rank());  // prepare synchronizes the ranks
  Net model;
  torch::optim::AdamW optimizer(trainable(model), adamw());
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (const auto& item : net->named_parameters()) {
    EXPECT(item.value().device() == accelerator.device(),
           item.key() + " is on " + item.value().device().str());
  }
  Net reference = reference_of(accelerator, net);
  torch::optim::AdamW reference_optimizer(trainable(reference), adamw());
  for (int step = 0; step < kSteps; ++step) {
    reference_optimizer.zero_grad();
    for (int64_t i = 0; i < window; ++i) {
      const Batch joined = joined_batch(static_cast<int>(step * window + i), kRows);
      (loss_of(reference, joined) / window).backward();
      const auto scope = accelerator.accumulate(net);
      const Batch own = own_part(joined, accelerator.rank(), accelerator.world_size());
      const auto loss = loss_of(net, on_device(accelerator, own));
      EXPECT(loss.device() == accelerator.device(), "the loss is on " + loss.device().str());
      accelerator.backward(loss);
      if (clip_to > 0 && accelerator.sync_gradients()) {
        const double norm = accelerator.clip_grad_norm(net, clip_to);
        const double expected = torch::nn::utils::clip_grad_norm_(trainable(reference), clip_to);
        EXPECT(std::abs(norm - expected) < 1e-9,
               "the norm is " + std::to_string(norm) + ", not " + std::to_string(expected));
      }
      opt.step();
      opt.zero_grad();
    }
    reference_optimizer.step();
    expect_same_weights(accelerator, net, reference, kTolerance,
                        "after step " + std::to_string(step));
  }
  accelerator.set_gradient_accumulation_steps(1);
  accelerator.free_memory();
}

void trains_like_the_cpu(Accelerator& accelerator) {
  for (const int64_t window : {1, 2}) {
    for (const double clip_to : {0.0, 0.05}) train(accelerator, window, clip_to);
  }
}

// Needs training.optimizer_in_backward.
void in_backward_trains_like_the_cpu(Accelerator& accelerator) {
  for (const int64_t window : {1, 2}) train(accelerator, window, 0);
}

// The loss of a model in float, whose layers may compute in another dtype.
torch::Tensor float_loss_of(Net& net, const Batch& batch, torch::Tensor* hidden = nullptr) {
  const auto output = net->hidden->forward(net->embedding->forward(batch.tokens).sum(1));
  if (hidden != nullptr) *hidden = output;
  return torch::cross_entropy_loss(torch::linear(output, net->tied).to(torch::kFloat),
                                   batch.targets);
}

// The loss falls. type: the dtype in which layers must compute.
void learns_in(Accelerator& accelerator, torch::ScalarType type) {
  torch::manual_seed(3);
  Net model;
  model->to(torch::kFloat);
  torch::optim::AdamW optimizer(trainable(model), adamw());
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const Batch own = on_device(
      accelerator, own_part(joined_batch(0, kRows), accelerator.rank(), accelerator.world_size()));
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    torch::Tensor hidden, loss;
    {
      const auto autocast = accelerator.autocast();
      loss = float_loss_of(net, own, &hidden);
    }
    EXPECT(hidden.scalar_type() == type, std::string("it computes in ") + toString(type));
    EXPECT(loss.device() == accelerator.device(), "the loss is on " + loss.device().str());
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    last = accelerator.reduce(loss.detach(), coupler::ReduceOp::kMean).item<double>();
    if (step == 0) first = last;
  }
  EXPECT(last < 0.9 * first,
         "the loss changed from " + std::to_string(first) + " to " + std::to_string(last));
  accelerator.free_memory();
}

// Needs a backend that gathers parameters in bf16, or bf16 autocast, for which the double has no
// kernels.
void bf16_learns(Accelerator& accelerator) { learns_in(accelerator, torch::kBFloat16); }

// A model made without values gets them on the device, equal to those of a model made with values.
void empty_weights_come_on_the_device(Accelerator& accelerator) {
  torch::manual_seed(11);
  Net eager;
  torch::manual_seed(11);
  auto made = [] {
    const coupler::EmptyWeights empty;
    return Net();
  };
  Net model = made();
  auto net = accelerator.prepare(model);
  const auto expected = eager->named_parameters();
  for (const auto& [name, value] : values_of(accelerator, net)) {
    EXPECT(torch::equal(value, expected[name]), name + " has different values");
  }
  EXPECT(net->hidden->weight.device() == accelerator.device(), "the model is on another device");
  accelerator.free_memory();
}

// Dropout draws the same numbers again, whatever generator the device has.
struct DroppingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(torch::tanh(inner(x)), 0.5, /*train=*/true);
  }
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(6, 6));
};
TORCH_MODULE(Dropping);

std::vector<torch::Tensor> gradients_with(Accelerator& accelerator, bool checkpoint, bool offload) {
  torch::manual_seed(5);
  Dropping model;
  auto net = accelerator.prepare(model);
  torch::manual_seed(7);
  const auto input = torch::randn({4, 6}).to(accelerator.device()).set_requires_grad(true);
  torch::Tensor output;
  if (checkpoint) {
    output = coupler::activation_checkpoint(
        coupler::ActivationCheckpointOptions{.offload_to_cpu = offload},
        [&](const torch::Tensor& x) { return net->forward(x); }, input);
  } else {
    output = net->forward(input);
  }
  accelerator.backward(output.square().sum());
  std::vector<torch::Tensor> result = {input.grad().cpu(),
                                       accelerator.gradient(net->inner->weight).cpu()};
  accelerator.free_memory();
  return result;
}

void checkpointed_activations_are_computed_again(Accelerator& accelerator) {
  const auto expected = gradients_with(accelerator, false, false);
  for (const bool offload : {false, true}) {
    const auto seen = gradients_with(accelerator, true, offload);
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT(torch::equal(seen[i], expected[i]), "gradient " + std::to_string(i) + " differs");
    }
  }
}

// Needs training.mixed_precision = "bf16". LibTorch's own loss on a GPU is a multiple of 0.06 here,
// and one of logits converted to fp32 takes 12 bytes per logit.
void a_loss_in_autocast_is_as_exact_as_in_fp32(Accelerator& accelerator) {
  torch::manual_seed(6);
  const auto options = torch::TensorOptions(accelerator.device());
  const auto logits = torch::randn({16384, 25000}, options.dtype(torch::kBFloat16)).mul_(4);
  const auto target = torch::randint(25000, {16384}, options.dtype(torch::kLong));
  const auto head = [](const torch::Tensor& values) { return values.narrow(0, 0, 64); };
  const auto expected =
      torch::cross_entropy_loss(head(logits).cpu().to(torch::kFloat), head(target).cpu());
  logits.requires_grad_();
  const auto scope = accelerator.autocast();
  const double difference =
      (torch::cross_entropy_loss(head(logits), head(target)).cpu() - expected).item<double>();
  EXPECT(std::abs(difference) < 1e-4, "it differs by " + std::to_string(difference));
  const size_t before = device_bytes(accelerator).most;
  torch::cross_entropy_loss(logits, target).backward();
  const size_t grown = device_bytes(accelerator).most - before, gradient = logits.nbytes();
  EXPECT(grown < gradient + (size_t{800} << 20),
         "it took " + std::to_string(grown >> 20) + " MiB more");
}

void memory_is_given_back(Accelerator& accelerator) {
  accelerator.free_memory();
  const size_t before = device_bytes(accelerator).now;
  train(accelerator, 1, 0);
  const size_t after = device_bytes(accelerator).now;
  accelerator.print("peak device memory: ", device_bytes(accelerator).most, " bytes");
  EXPECT(after <= before, std::to_string(after - before) + " bytes stay on the device");
}

void batches_come_on_the_device(Accelerator& accelerator) {
  const Batch joined = joined_batch(0, kRows);
  for (const int64_t workers : {0, 2}) {
    auto loader = coupler::data_loader(coupler::TensorDataset(joined.tokens, joined.targets),
                                       {.batch_size = 2, .workers = workers});
    auto batches = accelerator.prepare(loader);
    int64_t rows = 0;
    for (auto& batch : batches) {
      EXPECT(batch.data.device() == accelerator.device(), "a batch is on another device");
      EXPECT(batch.target.device() == accelerator.device(), "a target is on another device");
      rows += batch.data.size(0);
    }
    EXPECT(rows == kRows / accelerator.world_size(), std::to_string(rows) + " rows came");
  }
}

// Devices are shared in turn if there are fewer than ranks.
void the_device_is_the_ranks_own(Accelerator& accelerator) {
  const c10::Device own = accelerator.device();
  EXPECT(!own.is_cpu(), "trains on " + own.str());
  const int count = c10::impl::VirtualGuardImpl(own.type()).deviceCount();
  EXPECT(own.index() == accelerator.local_rank() % count, "rank has " + own.str());
}

}  // namespace

std::vector<Check> training_checks() {
  return {
      {"the_device_is_the_ranks_own", the_device_is_the_ranks_own},
      {"trains_like_the_cpu", trains_like_the_cpu},
      {"in_backward_trains_like_the_cpu", in_backward_trains_like_the_cpu},
      {"bf16_learns", bf16_learns, /*alone=*/true},
      {"empty_weights_come_on_the_device", empty_weights_come_on_the_device},
      {"checkpointed_activations_are_computed_again", checkpointed_activations_are_computed_again},
      {"a_loss_in_autocast_is_as_exact_as_in_fp32", a_loss_in_autocast_is_as_exact_as_in_fp32,
       /*alone=*/true},
      {"memory_is_given_back", memory_is_given_back},
      {"batches_come_on_the_device", batches_come_on_the_device},
  };
}
