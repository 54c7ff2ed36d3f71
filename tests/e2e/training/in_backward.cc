// training.optimizer_in_backward: the same weights as plain training, updated before step(), and
// the errors of what it does not support. The check needs the option, and small buckets if a model
// is replicated on several ranks.
#include <coupler/coupler.h>

#include "check.h"

namespace {

using coupler::Accelerator;

constexpr int64_t kWindowRows = 24;  // divisible by world sizes 1 to 4, also in windows of two

Net whole_copy_of(Accelerator& accelerator, Net& net) {
  torch::NoGradGuard no_grad;
  Net copy;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    if (auto* parameter = copy->named_parameters().find(name)) parameter->copy_(value);
  });
  return copy;
}

void expect_same_weights(Accelerator& accelerator, Net& net, Net& reference, int step) {
  const auto expected = reference->named_parameters();
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    const auto* const other = expected.find(name);
    if (other == nullptr) return;
    const double difference = (value - *other).abs().max().item<double>();
    EXPECT(difference <= 1e-10, name + " differs by " + std::to_string(difference) +
                                    " after step " + std::to_string(step));
  });
}

// weighted: losses are sums, and windows are divided by the number of summands.
void train_in_backward(Accelerator& accelerator, int64_t window, bool weighted) {
  accelerator.set_gradient_accumulation_steps(window);
  torch::manual_seed(3);
  Net model;
  torch::optim::AdamW optimizer(trainable(model), torch::optim::AdamWOptions(1e-2));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  EXPECT(opt.description() == "fused AdamW, in backward", opt.description());
  Net reference = whole_copy_of(accelerator, net);
  torch::optim::AdamW reference_optimizer(trainable(reference), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 6; ++step) {
    reference_optimizer.zero_grad();
    for (int64_t i = 0; i < window; ++i) {
      const Batch joined = joined_batch(static_cast<int>(step * window + i), kWindowRows);
      (loss_of(reference, joined) / window).backward();
      const auto scope = accelerator.accumulate(net);
      const Batch own = own_part(joined, accelerator.rank(), accelerator.world_size());
      const auto rows = static_cast<double>(own.tokens.size(0));
      if (weighted) {
        accelerator.backward(loss_of(net, own) * rows, rows);
      } else {
        accelerator.backward(loss_of(net, own));
      }
      opt.step();
      opt.zero_grad();
    }
    reference_optimizer.step();
    expect_same_weights(accelerator, net, reference, step);
  }
  accelerator.set_gradient_accumulation_steps(1);
  accelerator.free_memory();
}

void trains_the_same(Accelerator& accelerator) {
  for (const int64_t window : {1, 2}) {
    for (const bool weighted : {false, true}) train_in_backward(accelerator, window, weighted);
  }
}

// Two layers, so that one is complete before the other.
struct TwoImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Two);

torch::Tensor second_weight(Accelerator& accelerator, Two& net) {
  torch::Tensor result;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    if (name == "second.weight") result = value.clone();
  });
  return result;
}

// If gradients are reduced in several parts, or not at all, the first is used before step().
void updates_before_step(Accelerator& accelerator) {
  Two model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto before = second_weight(accelerator, net);
  accelerator.backward(net->forward(torch::ones({2, 4})).square().sum());
  const bool here = !torch::equal(before, second_weight(accelerator, net));
  EXPECT(accelerator.reduce(torch::tensor(here ? 1 : 0)).item<int64_t>() > 0,
         "it is not updated before step()");
  opt.step();
  expect_same_everywhere(accelerator, second_weight(accelerator, net), "the second weight");
  accelerator.free_memory();
}

void expect_words(const std::string& message, const std::string& words) {
  EXPECT(message.find(words) != std::string::npos, "'" + words + "' is not in: " + message);
  EXPECT(message.find("optimizer_in_backward") != std::string::npos, message);
}

void refuses(Accelerator& accelerator) {
  Two model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  auto& prepared = net;  // lambdas can capture it
  const auto loss = [&] { return prepared->forward(torch::ones({2, 4})).square().sum(); };
  accelerator.backward(loss());
  expect_words(error_of([&] { accelerator.clip_grad_norm(prepared, 1.0); }),
               "clip_grad_norm: the optimizer has used the gradients of");
  expect_words(error_of([&] { accelerator.clip_grad_value(prepared, 1.0); }), "clip_grad_value");
  expect_words(error_of([&] { accelerator.gradient(prepared->first->weight); }), "gradient");
  opt.step();
  accelerator.backward(loss());
  expect_words(error_of([&] { accelerator.backward(loss()); }), "without an optimizer step()");
  accelerator.free_memory();

  Two other;
  torch::optim::RMSprop unfused(other->parameters());
  expect_words(error_of([&] { accelerator.prepare(other, unfused); }),
               "this optimizer updates all parameters at once");
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> in_backward_checks() {
  return {{"optimizer_in_backward",
           [](Accelerator& accelerator) {
             trains_the_same(accelerator);
             updates_before_step(accelerator);
             refuses(accelerator);
           },
           /*alone=*/true}};
}
