// Kinds of models and of passes: models built inside EmptyWeights, TorchScript, branches that
// differ between steps, evaluation between training steps and in a different order on each rank.
#include <coupler/empty_weights.h>
#include <torch/csrc/jit/api/module.h>

#include <fstream>

#include "tower.h"

namespace {

using coupler::Accelerator;

using Values = std::vector<std::pair<std::string, torch::Tensor>>;
Values values_of(Accelerator& accelerator, Tower& net) {
  Values result;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    result.emplace_back(name, value.clone());
  });
  return result;
}

// Bitwise equal to what the constructors give, and it trains identically.
void empty_equals_eager(Accelerator& accelerator) {
  torch::manual_seed(11);
  Tower eager;
  torch::manual_seed(11);
  Tower empty{nullptr};
  {
    const coupler::EmptyWeights scope;
    empty = Tower();
  }
  EXPECT(empty->in->weight.is_meta(), "the model is not empty");
  auto eager_optimizer = adamw()(eager->parameters()),
       empty_optimizer = adamw()(empty->parameters());
  auto [eager_net, eager_opt] = accelerator.prepare(eager, *eager_optimizer);
  auto [empty_net, empty_opt] = accelerator.prepare(empty, *empty_optimizer);
  expect_kind(empty_net->tokens->weight, *empty_optimizer);
  const auto compare = [&, &a = eager_net, &b = empty_net](const std::string& when) {
    const Values one = values_of(accelerator, a), other = values_of(accelerator, b);
    EXPECT(one.size() == other.size() && one.size() >= 9, "the number of tensors differs");
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT(one[i].first == other[i].first && torch::equal(one[i].second, other[i].second),
             one[i].first + " differs from the value without EmptyWeights, " + when);
    }
  };
  compare("after prepare");
  EXPECT(!empty_net->mid->bias.requires_grad() && empty_net->in->weight.requires_grad(),
         "the set of trainable parameters has changed");
  EXPECT(empty_net->head->named_parameters(false)["weight"].is_same(empty_net->tokens->weight),
         "the tied weights have become two tensors");
  for (int step = 0; step < 3; ++step) {
    const Batch mine =
        own_part(joined_batch(step, kTowerRows), accelerator.rank(), accelerator.world_size());
    for (auto [net, opt] : {std::pair(&eager_net, &eager_opt), std::pair(&empty_net, &empty_opt)}) {
      accelerator.backward(tower_loss(*net, mine));
      opt->step();
      opt->zero_grad();
    }
  }
  compare("after training");
}

int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// 200 MB, of which each of four ranks owns 50, plus as much for gradients: no process ever holds
// the full model. In addition a few parameters (6.5 MB each) are gathered at a time.
void empty_is_never_whole(Accelerator& accelerator) {
  const int64_t width = 1280, layers = 32, whole = layers * width * width * 4;
  EXPECT(accelerator.world_size() == 4, "this check needs four ranks");
  torch::nn::Sequential small(torch::nn::Linear(64, 64));
  accelerator.prepare(small);  // the first prepare needs extra memory
  const int64_t before = peak_bytes();
  EXPECT(before > 0, "the system does not report the used memory");
  torch::nn::Sequential model;
  {
    const coupler::EmptyWeights scope;
    for (int64_t i = 0; i < layers; ++i) {
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
  }
  auto net = accelerator.prepare(model);
  const int64_t grown = peak_bytes() - before;
  const auto in_mb = [](int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  EXPECT(grown >= whole / 4, "the shard was not allocated: " + in_mb(grown));
  EXPECT(grown <= whole * 7 / 10, "the peak grew by " + in_mb(grown) + " of " + in_mb(whole));
  // A rank's part is filled with values other than zeros.
  torch::NoGradGuard no_grad;
  EXPECT(net->forward(torch::ones({1, width})).abs().max().item<float>() > 0, "its output is zero");
}

// A module with a submodule, and enough steps for the executor to fuse operations.
void torchscript_trains(Accelerator& accelerator) {
  torch::manual_seed(accelerator.rank());
  const auto make = [] {
    torch::jit::Module inner("Inner"), outer("Outer");
    inner.register_parameter("weight", torch::randn({5, 3}), false);
    inner.define("def forward(self, x):\n  return torch.tanh(torch.matmul(x, self.weight))\n");
    outer.register_module("inner", inner);
    outer.register_parameter("bias", torch::randn({3}), false);
    outer.register_parameter("scale", torch::randn({1}), false);
    outer.define(
        "def forward(self, x):\n  y = self.inner.forward(x) + self.bias\n  return y * "
        "self.scale\n");
    return outer;
  };
  const auto list = [](const torch::jit::Module& module) {
    std::vector<torch::Tensor> result;
    for (const auto& parameter : module.parameters()) {
      result.push_back(parameter.requires_grad_(true));
    }
    return result;
  };
  auto model = make(), reference = make();
  auto optimizer = adamw()(list(model));
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  expect_kind(net.attr("inner").toModule().attr("weight").toTensor(), *optimizer);
  {
    torch::NoGradGuard no_grad;
    const auto from = list(net), to = list(reference);
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i].detach());
  }
  auto reference_optimizer = adamw()(list(reference));
  const int64_t rows = kTowerRows / accelerator.world_size();
  for (int step = 0; step < 8; ++step) {
    const auto joined =
        torch::randn({kTowerRows, 5}, at::detail::createCPUGenerator(static_cast<uint64_t>(step)));
    const auto expected = reference.forward({joined}).toTensor().square().mean();
    reference_optimizer->zero_grad();
    expected.backward();
    reference_optimizer->step();
    const auto loss =
        net.forward({joined.narrow(0, accelerator.rank() * rows, rows)}).toTensor().square().mean();
    opt.zero_grad();
    accelerator.backward(loss);
    opt.step();
    expect_relative(mean_over_ranks(accelerator, loss), expected.item<double>(), 1e-5,
                    "loss " + std::to_string(step));
  }
}

struct BranchesImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const std::vector<int>& way) {
    auto hidden = x;
    for (const int layer : way)
      hidden = torch::tanh((*layers)[layer]->as<torch::nn::Linear>()->forward(hidden));
    return hidden;
  }
  torch::nn::ModuleList layers = register_module(
      "layers", torch::nn::ModuleList(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6),
                                      torch::nn::Linear(6, 6), torch::nn::Linear(6, 6)));
};
TORCH_MODULE(Branches);

torch::Tensor joined_rows(int step) {
  return torch::randn({kTowerRows, 6}, at::detail::createCPUGenerator(static_cast<uint64_t>(step)));
}
torch::Tensor rows_of(Accelerator& accelerator, int step) {
  const int64_t rows = kTowerRows / accelerator.world_size();
  return joined_rows(step).narrow(0, accelerator.rank() * rows, rows);
}

void copy_values(Branches& from, Branches& to) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to->parameters().size(); ++i) {
    to->parameters()[i].copy_(from->parameters()[i]);
  }
}

// The same path on all ranks, a different one in each step; some are longer or reuse a layer.
void branches_differ_between_steps(Accelerator& accelerator) {
  torch::manual_seed(accelerator.rank());
  Branches model, reference;
  auto optimizer = adamw()(model->parameters());
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  expect_kind(net->parameters()[0], *optimizer);
  copy_values(net, reference);
  auto reference_optimizer = adamw()(reference->parameters());
  const std::vector<std::vector<int>> ways = {{0, 1, 2, 3}, {0, 2, 3}, {3, 2, 1, 0}, {1},
                                              {0, 1, 0},    {2, 2, 3}, {0, 1, 2, 3}, {3, 0}};
  for (int step = 0; step < 16; ++step) {
    const auto& way = ways[static_cast<size_t>(step) % ways.size()];
    const auto expected = (reference->forward(joined_rows(step), way) - 0.5).square().mean();
    reference_optimizer->zero_grad();
    expected.backward();
    reference_optimizer->step();
    const auto loss = (net->forward(rows_of(accelerator, step), way) - 0.5).square().mean();
    opt.zero_grad();
    accelerator.backward(loss);
    opt.step();
    expect_relative(mean_over_ranks(accelerator, loss), expected.item<double>(), 1e-5,
                    "loss " + std::to_string(step));
  }
}

// Evaluation uses the layers in a different order than training: the same on every rank, or
// (own_order) a different one on each. Training continues afterwards as if nothing had happened.
void evaluate_in_another_order(Accelerator& accelerator, bool own_order) {
  torch::manual_seed(accelerator.rank());
  Branches model, reference;
  auto optimizer = adamw()(model->parameters());
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  expect_kind(net->parameters()[0], *optimizer);
  copy_values(net, reference);
  auto reference_optimizer = adamw()(reference->parameters());
  const std::vector<int> forwards = {0, 1, 2, 3};
  const std::vector<std::vector<int>> ways = {{1, 2, 3, 0}, {2, 3, 0, 1}, {3, 2, 1, 0}, {2, 0}};
  for (int step = 0; step < 6; ++step) {
    const auto expected = reference->forward(joined_rows(step), forwards).square().mean();
    reference_optimizer->zero_grad();
    expected.backward();
    reference_optimizer->step();
    const auto loss = net->forward(rows_of(accelerator, step), forwards).square().mean();
    opt.zero_grad();
    accelerator.backward(loss);
    opt.step();
    expect_relative(mean_over_ranks(accelerator, loss), expected.item<double>(), 1e-5,
                    "loss " + std::to_string(step));
    torch::NoGradGuard no_grad;
    const auto x = rows_of(accelerator, 100 + step);
    const int number = own_order ? accelerator.rank() : step;
    const auto& way = ways[static_cast<size_t>(number) % ways.size()];
    for (int round = 0; round < 2; ++round) {
      expect_near(net->forward(x, way), reference->forward(x, way), 1e-4,
                  "the output of rank " + std::to_string(accelerator.rank()));
    }
  }
}

void evaluation_in_another_order(Accelerator& accelerator) {
  evaluate_in_another_order(accelerator, false);
}
// Ranks that need different parameters at the same time wait for each other, so this may fail.
void evaluation_in_an_order_of_its_own(Accelerator& accelerator) {
  evaluate_in_another_order(accelerator, true);
}

// Both ways to disable gradients, between steps and between forward and backward.
void inference_between_steps(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  for (int step = 0; step < 6; ++step) {
    const auto x = joined_batch(50 + step, 4).tokens;
    const auto compare = [&](const char* how) {
      expect_near(pair.net->forward(x), pair.reference->forward(x), 1e-4, how);
    };
    {
      torch::NoGradGuard no_grad;
      compare("under NoGradGuard");
    }
    {
      torch::InferenceMode inference;
      compare("in inference mode");
    }
    const auto losses = pair.step(step, [&](bool ours) {
      if (!ours) return;
      torch::NoGradGuard no_grad;  // before the step, so the values are still the old ones
      pair.net->forward(x);
    });
    expect_relative(losses.ours, losses.reference, 1e-5, "loss " + std::to_string(step));
  }
}

}  // namespace

std::vector<Check> model_checks() {
  return {
      {"empty_equals_eager", empty_equals_eager},
      {"empty_is_never_whole", empty_is_never_whole, true},
      {"torchscript_trains", torchscript_trains},
      {"branches_differ_between_steps", branches_differ_between_steps},
      {"evaluation_in_another_order", evaluation_in_another_order},
      {"evaluation_in_an_order_of_its_own", evaluation_in_an_order_of_its_own, true},
      {"inference_between_steps", inference_between_steps},
  };
}
