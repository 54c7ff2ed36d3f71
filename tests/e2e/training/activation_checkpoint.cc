// Activation checkpointing: the same bits as without it, under every backend, with no activations
// kept in between; and its errors.
#include <coupler/coupler.h>

#include <map>

#include "check.h"

namespace {

using coupler::Accelerator;

// Random numbers, a buffer, a residual.
struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    auto inside = torch::gelu(in(x));
    if (seen != nullptr) *seen = inside.getIntrusivePtr();
    return x + torch::dropout(out(inside), 0.25, is_training());
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 24));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(24, 8));
  c10::weak_intrusive_ptr<c10::TensorImpl>* seen = nullptr;  // the last inner activation
};
TORCH_MODULE(Block);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
  }
  // how: 0: no parts; 1: each block is a part; 2: the first two are a part with nested parts
  torch::Tensor forward(torch::Tensor x, int how) {
    // Copies: backward calls them again, when the variables of this call are gone.
    const auto apply = [this](size_t i, const torch::Tensor& in) {
      return blocks[i]->as<Block>()->forward(in);
    };
    size_t next = 0;
    if (how == 2) {
      x = coupler::activation_checkpoint(
          [apply](const torch::Tensor& in) {
            torch::Tensor y = in;
            for (size_t i = 0; i < 2; ++i) y = coupler::activation_checkpoint(apply, i, y);
            return y;
          },
          x);
      next = 2;
    }
    for (; next < blocks->size(); ++next)
      x = how == 0 ? apply(next, x) : coupler::activation_checkpoint(apply, next, x);
    return x;
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(Stack);

using Values = std::map<std::string, torch::Tensor>;

Values train_stack(Accelerator& accelerator, int how) {
  coupler::set_seed(11);
  Stack model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  coupler::set_seed(5, {.device_specific = true});
  for (int step = 0; step < 6; ++step) {
    const auto window = accelerator.accumulate(net);
    const auto scope = accelerator.autocast();
    const auto x = torch::randn({4, 8});
    accelerator.backward(net->forward(x, how).square().mean());
    opt.step();
    opt.zero_grad();
  }
  Values values;
  torch::NoGradGuard no_grad;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    values[name] = value.detach().clone();
  });
  // The next random numbers are the same too: recomputation does not consume any.
  values["next"] = torch::randn({4});
  accelerator.free_memory();
  return values;
}

void computed_again_gives_the_same_bits(Accelerator& accelerator) {
  for (const int64_t windows : {1, 2}) {
    const int64_t before = accelerator.gradient_accumulation_steps();
    accelerator.set_gradient_accumulation_steps(windows);
    const Values expected = train_stack(accelerator, 0);
    for (const int how : {1, 2}) {
      for (const auto& [name, value] : train_stack(accelerator, how)) {
        EXPECT(torch::equal(value, expected.at(name)),
               name + " differs with parts " + std::to_string(how));
      }
    }
    accelerator.set_gradient_accumulation_steps(before);
  }
}

void nothing_is_kept_between(Accelerator&) {
  Block block;
  c10::weak_intrusive_ptr<c10::TensorImpl> inside(torch::empty({0}).getIntrusivePtr());
  block->seen = &inside;
  const auto x = torch::randn({4, 8});
  const auto as_it_is = block->forward(x);
  EXPECT(!inside.expired(),
         "the activation is not kept without a part either, so the test proves nothing");
  const auto kept = coupler::activation_checkpoint(
      [&](const torch::Tensor& in) { return block->forward(in); }, x);
  EXPECT(inside.expired(), "an activation inside the part is kept");
  EXPECT(kept.requires_grad(), "an input without a gradient disables training");
  kept.sum().backward();
  EXPECT(block->in->weight.grad().defined() && inside.expired(), "it was not recomputed");
  {
    const torch::NoGradGuard no_grad;
    const auto evaluated = coupler::activation_checkpoint(
        [&](const torch::Tensor& in) { return block->forward(in); }, x);
    EXPECT(!evaluated.requires_grad(), "a graph is recorded, but should not be");
  }
}

// Structures as inputs and results, other values, results without gradients, empty inputs.
void structures_go_through(Accelerator&) {
  const auto a = torch::ones({2}, torch::requires_grad()), b = torch::full({2}, 3.0);
  const std::map<std::string, torch::Tensor> inputs{{"a", a}, {"b", b}};
  const auto [product, indices] = coupler::activation_checkpoint(
      [](const std::map<std::string, torch::Tensor>& in, double factor,
         const std::optional<torch::Tensor>& nothing, const torch::Tensor& undefined) {
        EXPECT(!nothing && !undefined.defined(), "an undefined input became defined");
        return std::make_pair(in.at("a") * in.at("b") * factor, in.at("b").argsort());
      },
      inputs, 2.0, std::optional<torch::Tensor>(), torch::Tensor());
  EXPECT(!indices.requires_grad() && indices.scalar_type() == torch::kLong, "whole numbers");
  product.sum().backward();
  EXPECT(torch::equal(a.grad(), torch::full({2}, 6.0)), "the gradient of a leaf in a map");
}

void what_cannot_be_is_said(Accelerator&) {
  const auto expect_said = [](const std::string& part, const std::function<void()>& action) {
    const std::string said = error_of(action);
    EXPECT(said.find(part) != std::string::npos, "'" + part + "' is not in: " + said);
  };
  const auto x = torch::ones({2}, torch::requires_grad());
  int calls = 0;
  const auto changes = coupler::activation_checkpoint(
      [&](const torch::Tensor& in) { return in.repeat(++calls); }, x);
  expect_said("result 0 of the function was Float [2] in forward and is Float [4] in backward",
              [&] { changes.sum().backward(); });
  const auto square = [](const torch::Tensor& in) { return in.square(); };
  expect_said("second-order gradients are not supported", [&] {
    coupler::activation_checkpoint(square, x).sum().backward({}, true, /*create_graph=*/true);
  });
  expect_said("torch::autograd::grad and backward with inputs are not supported", [&] {
    torch::autograd::grad({coupler::activation_checkpoint(square, x).sum()}, {x});
  });
  expect_said("result 0 of the function is an undefined tensor", [&] {
    coupler::activation_checkpoint([](const torch::Tensor&) { return torch::Tensor(); }, x);
  });
  expect_said("of its own", [&] {
    coupler::activation_checkpoint(
        [](const torch::Tensor&) -> torch::Tensor {
          throw coupler::Error(coupler::ErrorCode::kUsage, "an error of its own");
        },
        x);
  });
}

}  // namespace

std::vector<Check> activation_checkpoint_checks() {
  return {{"computed_again_gives_the_same_bits", computed_again_gives_the_same_bits},
          {"nothing_is_kept_between", nothing_is_kept_between},
          {"structures_go_through", structures_go_through},
          {"what_cannot_be_is_said", what_cannot_be_is_said}};
}
