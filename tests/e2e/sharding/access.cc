// Reading and writing a sharded model: summon_full_parameters, for_each_tensor, gradient. Also the
// errors of wrong calls: every rank gets the same error, and the job continues.
#include <coupler/empty_weights.h>

#include <limits>

#include "tower.h"

namespace {

using coupler::Accelerator;

void contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
  }
}

// The message of any exception: autograd may have wrapped a coupler::Error.
std::string any_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  EXPECT(false, "nothing was thrown");
  return {};
}

torch::Tensor some(const torch::Tensor& like, uint64_t seed) {
  return torch::randn(like.sizes(), at::detail::createCPUGenerator(seed));
}

void summon_reads(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  pair.step(0);
  const auto scope = coupler::summon_full_parameters(pair.net, /*writeback=*/false);
  auto expected = pair.reference->named_parameters();
  for (const auto& parameter : pair.net->named_parameters()) {
    // Through the pointer, since an operation would gather.
    const auto* const ours = parameter.value().const_data_ptr<float>();
    const auto* const theirs = expected[parameter.key()].const_data_ptr<float>();
    for (int64_t i = 0; i < parameter.value().numel(); ++i) {
      EXPECT(std::abs(ours[i] - theirs[i]) < 2e-4,
             parameter.key() + " differs from the trained value");
    }
  }
}

// All ranks see what all ranks have written, and training uses it.
void summon_writes(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  pair.step(0);
  for (auto* net : {&pair.net, &pair.reference}) {
    torch::NoGradGuard no_grad;
    const auto scope = coupler::summon_full_parameters(*net);
    uint64_t seed = 5;
    for (auto& parameter : (*net)->parameters()) parameter.copy_(some(parameter, ++seed) * 0.2);
    (*net)->norm->weight.data_ptr<float>()[3] = 0.75F;
  }
  expect_near_models(accelerator, pair.net, pair.reference, 0);
  const auto x = joined_batch(1, 4).tokens;
  expect_near(pair.net->forward(x), pair.reference->forward(x), 1e-6, "the output");
  for (int step = 1; step < 4; ++step) {
    const auto losses = pair.step(step);
    expect_relative(losses.ours, losses.reference, 1e-5, "loss " + std::to_string(step));
  }
}

// One layer only; and, if parameters are gathered, writes that are discarded.
void summon_of_a_module_and_without_writeback(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  torch::NoGradGuard no_grad;
  {
    const auto scope = coupler::summon_full_parameters(pair.net->mid);
    torch::nn::init::constant_(pair.net->mid->weight, 0.25);
  }
  pair.reference->mid->weight.fill_(0.25);
  expect_near_models(accelerator, pair.net, pair.reference, 0);
  if (!is_gathered()) return;
  {
    const auto scope = coupler::summon_full_parameters(pair.net, /*writeback=*/false);
    for (auto& parameter : pair.net->parameters()) parameter.zero_();
    EXPECT(pair.net->in->weight.abs().max().item<float>() == 0, "a write inside was not seen");
  }
  expect_near_models(accelerator, pair.net, pair.reference, 0);
  const auto x = joined_batch(1, 4).tokens;
  expect_near(pair.net->forward(x), pair.reference->forward(x), 1e-6, "the output");
}

void state_streams_in_order(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  pair.step(0);
  std::vector<std::string> expected;
  for (const auto& parameter : pair.reference->named_parameters()) {
    if (parameter.key() != "head.weight") expected.push_back(parameter.key());
  }
  for (const auto& buffer : pair.reference->named_buffers()) expected.push_back(buffer.key());
  std::vector<std::string> seen;
  accelerator.for_each_tensor(pair.net, [&](const std::string& name, const torch::Tensor& value) {
    seen.push_back(name);
    expect_same_everywhere(accelerator, value, name);
    EXPECT(!value.requires_grad(), name + " would be recorded by autograd");
  });
  EXPECT(seen == expected, "the order is not that of registration");
  expect_near_models(accelerator, pair.net, pair.reference, 2e-4);
}

void gradients_are_whole(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  EXPECT(!accelerator.gradient(pair.net->in->weight).defined(),
         "there is a gradient before backward");
  pair.step(0, [&](bool ours) {
    if (!ours) return;
    auto expected = pair.reference->named_parameters();
    for (const auto& parameter : pair.net->named_parameters()) {
      if (!parameter.value().requires_grad()) continue;
      const auto gradient = accelerator.gradient(parameter.value());
      expect_near(gradient, expected[parameter.key()].grad(), 1e-6, parameter.key());
      expect_same_everywhere(accelerator, gradient, "the gradient of " + parameter.key());
    }
  });
  contains(error_of([&] { accelerator.gradient(pair.reference->in->weight); }),
           {"not a parameter of a prepared model"});
}

// ---- Errors ----

void write_outside_is_refused(Accelerator& accelerator) {
  if (!is_gathered()) return;
  Pair pair(accelerator, adamw());
  torch::NoGradGuard no_grad;
  contains(error_of([&] { pair.net->in->weight.fill_(0); }),
           {"'in.weight'", "the change would be lost", "summon_full_parameters"});
  contains(error_of([&] { pair.net->in->weight.view(-1).narrow(0, 0, 2).zero_(); }),
           {"'in.weight'"});
  contains(error_of([&] { torch::nn::init::zeros_(pair.net->norm->bias); }), {"'norm.bias'"});
  expect_near_models(accelerator, pair.net, pair.reference, 0);
}

void replaced_parameter_is_named(Accelerator& accelerator) {
  if (!is_divided()) return;
  {
    Pair pair(accelerator, adamw());
    pair.net->mid->weight.set_data(torch::zeros({17, 17}));
    contains(any_error_of([&] { pair.step(0); }),
             {"'mid.weight'", "replaced after prepare", "before accelerator.prepare"});
  }
  Pair pair(accelerator, adamw());
  pair.net->to(torch::kDouble);
  contains(any_error_of([&] { pair.step(0); }), {"'tokens.weight'", "replaced after prepare"});
}

void nan_gradient_is_named_everywhere(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  const bool last = accelerator.rank() == accelerator.world_size() - 1;
  const double factor = last ? std::numeric_limits<double>::quiet_NaN() : 0;
  auto loss =
      (pair.net->mid->weight * factor).sum() + tower_loss(pair.net, joined_batch(0, kTowerRows));
  accelerator.backward(loss);
  contains(error_of([&] { accelerator.clip_grad_norm(pair.net, 1.0); }), {"'mid.weight'", "nan"});
  pair.optimizer->zero_grad();
  const auto losses = pair.step(1);
  expect_relative(losses.ours, losses.reference, 1e-5, "the loss afterwards");
}

void optimizers_that_cannot_be_divided(Accelerator& accelerator) {
  if (!is_divided()) return;
  const auto prepare = [&](const Pair::Make& make, bool stepped) {
    torch::manual_seed(0);
    Tower model;
    auto optimizer = make(model->parameters());
    if (stepped) {
      tower_loss(model, joined_batch(0, kTowerRows)).backward();
      optimizer->step();
    }
    return error_of([&] { accelerator.prepare(model, *optimizer); });
  };
  contains(prepare(
               [](auto parameters) {
                 return std::make_unique<torch::optim::LBFGS>(std::move(parameters));
               },
               false),
           {"LBFGS", "AdamW", "a backend that replicates"});
  contains(prepare(adamw(), true), {"took steps before prepare", "before the first step"});
}

struct SparseImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module(
      "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 4).sparse(true)));
};
TORCH_MODULE(Sparse);

void sparse_gradient_is_refused(Accelerator& accelerator) {
  if (!is_divided()) return;
  Sparse model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto loss = net->words(torch::tensor({1, 2})).sum();
  contains(any_error_of([&] { accelerator.backward(loss); }),
           {"'words.weight'", "sparse gradient", "sparse(false)"});
}

}  // namespace

std::vector<Check> access_checks() {
  return {
      {"summon_reads", summon_reads},
      {"summon_writes", summon_writes},
      {"summon_of_a_module_and_without_writeback", summon_of_a_module_and_without_writeback},
      {"state_streams_in_order", state_streams_in_order},
      {"gradients_are_whole", gradients_are_whole},
      {"write_outside_is_refused", write_outside_is_refused},
      {"replaced_parameter_is_named", replaced_parameter_is_named},
      {"nan_gradient_is_named_everywhere", nan_gradient_is_named_everywhere},
      {"optimizers_that_cannot_be_divided", optimizers_that_cannot_be_divided},
      {"sparse_gradient_is_refused", sparse_gradient_is_refused},
  };
}
