// Models whose experts are divided over an expert group train, save and load as the whole model in
// one process does.
#include <coupler/coupler.h>

#include "expected.h"
#include "mesh_checks.h"

using coupler::Accelerator;

namespace {

constexpr int64_t kFeatures = 6, kExperts = 4, kRowsOfAll = 24, kTokensOfRow = 5;

struct ExpertNetImpl : torch::nn::Module {
  explicit ExpertNetImpl(
      coupler::ExpertActivation activation = coupler::ExpertActivation::kSwiGlu) {
    torch::manual_seed(11);
    in = register_module("in", torch::nn::Linear(kFeatures, kFeatures));
    first = register_module(
        "first",
        coupler::MixtureOfExperts(coupler::MixtureOfExpertsOptions{
            .features = kFeatures, .inner = 8, .experts = kExperts, .activation = activation}));
    second = register_module("second", coupler::MixtureOfExperts(coupler::MixtureOfExpertsOptions{
                                           .features = kFeatures,
                                           .inner = 7,
                                           .experts = kExperts,
                                           .top_k = 1,
                                           .activation = activation,
                                           .normalize_weights = false}));
    out = register_module("out", torch::nn::Linear(kFeatures, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = in->forward(x);
    h = h + first->forward(h);
    h = h + second->forward(h.tanh());
    return out->forward(h);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  coupler::MixtureOfExperts first{nullptr}, second{nullptr};
};
TORCH_MODULE(ExpertNet);

struct TokenRows {
  torch::Tensor inputs, targets;  // [rows, tokens, features], [rows, tokens, 3]
};

TokenRows joined_token_rows(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(300 + step));
  return {torch::randn({kRowsOfAll, kTokensOfRow, kFeatures}, generator, torch::kDouble),
          torch::randn({kRowsOfAll, kTokensOfRow, 3}, generator, torch::kDouble)};
}

TokenRows own_token_rows(Accelerator& accelerator, int step) {
  const TokenRows joined = joined_token_rows(step);
  const coupler::Mesh& mesh = accelerator.mesh();
  const int64_t rows = kRowsOfAll / mesh.size(kGradients), at = mesh.rank(kGradients) * rows;
  return {joined.inputs.narrow(0, at, rows), joined.targets.narrow(0, at, rows)};
}

torch::Tensor loss_of_experts(ExpertNet& net, const TokenRows& rows) {
  const torch::Tensor loss = torch::mse_loss(net->forward(rows.inputs), rows.targets);
  return loss + 0.05 * (net->first->balance_loss() + net->second->balance_loss());
}

Expected train_experts_alone(int steps) {
  ExpertNet net;
  return train_alone(*net, steps,
                     [&](int step) { return loss_of_experts(net, joined_token_rows(step)); });
}

// In checkpoint.dir, which jobs on other meshes share.
void continue_with_experts(Accelerator& accelerator, int first, int steps, bool saves) {
  const Expected expected = train_experts_alone(first + steps);
  ExpertNet model;
  shift(*model, first + accelerator.rank());
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  if (first > 0) accelerator.load_state();
  const auto run = [&, &net = net](int step) {
    const torch::Tensor loss = loss_of_experts(net, own_token_rows(accelerator, step));
    accelerator.backward(loss);
    return loss.item<double>();
  };
  train_as_expected(accelerator, net, opt, expected, first, first + steps, run);
  expect_weights(accelerator, net, expected);
  if (saves) accelerator.save_state();
}

void experts_train(Accelerator& accelerator) {
  continue_with_experts(accelerator, 0, kSteps, /*saves=*/false);
}
void experts_begin_elsewhere(Accelerator& accelerator) {
  continue_with_experts(accelerator, 0, 2, /*saves=*/true);
}
void experts_go_on_elsewhere(Accelerator& accelerator) {
  continue_with_experts(accelerator, 2, 2, /*saves=*/false);
}

// Every rank has its part of the experts only, and whole gradients when asked for.
void experts_parts(Accelerator& accelerator) {
  ExpertNet model, alone;
  auto net = accelerator.prepare(model);
  const int64_t own = kExperts / accelerator.mesh().size("expert");
  EXPECT(net->first->up.size(0) == own && net->first->down.size(0) == own, "it has all experts");
  accelerator.backward(loss_of_experts(net, own_token_rows(accelerator, 0)));
  loss_of_experts(alone, joined_token_rows(0)).backward();
  expect_gradients(accelerator, *net, *alone);
  EXPECT(torch::equal(net->first->expert_tokens(), alone->first->expert_tokens()),
         "the number of tokens of the experts differs");
}

// Ranks may have any number of tokens, none included.
void experts_of_unequal_batches(Accelerator& accelerator) {
  ExpertNet model(coupler::ExpertActivation::kGelu), alone(coupler::ExpertActivation::kGelu);
  auto net = accelerator.prepare(model);
  const TokenRows joined = joined_token_rows(1);
  const torch::Tensor mine = joined.inputs.narrow(0, 0, 2 * accelerator.rank());
  const torch::Tensor result = net->forward(mine);
  EXPECT(torch::allclose(result, alone->forward(mine), 1e-9, 1e-12), "the results differ");
  accelerator.backward(result.square().sum());
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  for (int rank = 0; rank < accelerator.world_size(); ++rank)
    sum = sum + alone->forward(joined.inputs.narrow(0, 0, 2 * rank)).square().sum();
  (sum / accelerator.mesh().size(kGradients)).backward();
  const auto ours = parameters_of(*net);
  for (const auto& item : parameters_of(*alone)) {
    if (!item.value().grad().defined()) continue;
    EXPECT(
        torch::allclose(accelerator.gradient(ours[item.key()]), item.value().grad(), 1e-8, 1e-10),
        "the gradient of " + item.key() + " differs");
  }
}

// Rows that went to other ranks' experts count in gradients of gradients, too.
void experts_penalize_gradients(Accelerator& accelerator) {
  ExpertNet model(coupler::ExpertActivation::kGelu), alone(coupler::ExpertActivation::kGelu);
  auto net = accelerator.prepare(model);
  const auto penalty = [](ExpertNet& of, const torch::Tensor& inputs) {
    const torch::Tensor x = inputs.clone().requires_grad_(true);
    return torch::autograd::grad({of->forward(x).square().sum()}, {x}, {}, /*retain_graph=*/true,
                                 /*create_graph=*/true)[0]
        .square()
        .mean();
  };
  accelerator.backward(penalty(net, own_token_rows(accelerator, 0).inputs));
  penalty(alone, joined_token_rows(0).inputs).backward();
  expect_gradients(accelerator, *net, *alone);
}

void experts_that_are_frozen(Accelerator& accelerator) {
  ExpertNet model;
  shift(*model, accelerator.rank());
  for (const auto& parameter : model->first->parameters()) parameter.set_requires_grad(false);
  auto net = accelerator.prepare(model);
  expect_same_weights(accelerator, net, *ExpertNet());
}

void experts_resume(Accelerator& accelerator) {
  ExpertNet model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto run = [&, &net = net, &opt = opt](int step) {
    const torch::Tensor loss = loss_of_experts(net, own_token_rows(accelerator, step));
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss.item<double>();
  };
  expect_resumes(accelerator, *ExpertNet(), run);
}

void experts_weights_files(Accelerator& accelerator) {
  expect_weights_files(accelerator, ExpertNet(), *ExpertNet());
}

void experts_from_empty_weights(Accelerator& accelerator) {
  expect_from_empty_weights<ExpertNet>(accelerator, *ExpertNet());
}

// In bf16, experts learn.
void experts_autocast(Accelerator& accelerator) {
  ExpertNet model;
  model->to(torch::kFloat);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  TokenRows rows = own_token_rows(accelerator, 0);
  rows = {rows.inputs.to(torch::kFloat), rows.targets.to(torch::kFloat)};
  expect_learns(accelerator, opt, 40, [&, &net = net] {
    const auto scope = accelerator.autocast();
    return loss_of_experts(net, rows);
  });
}

// What cannot go together with divided experts is refused by name.
void experts_refused(Accelerator& accelerator) {
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      layer = register_module("layer", coupler::MixtureOfExperts(coupler::MixtureOfExpertsOptions{
                                           .features = 4, .inner = 4, .experts = 3}));
    }
    coupler::MixtureOfExperts layer{nullptr};
  };
  expect_error(
      [&] {
        torch::nn::ModuleHolder<OddImpl> odd;
        accelerator.prepare(odd);
      },
      "the 3 experts of 'layer.up' cannot be divided over 2 ranks");
  ExpertNet model;
  auto net = accelerator.prepare(model);
  expect_error([&] { const coupler::LocalSGD local_sgd(accelerator, net); },
               "is divided over expert groups");
}

}  // namespace

std::vector<Check> mesh_expert_checks() {
  return {{"experts_train", experts_train},
          {"experts_parts", experts_parts},
          {"experts_of_unequal_batches", experts_of_unequal_batches},
          {"experts_penalize_gradients", experts_penalize_gradients},
          {"experts_that_are_frozen", experts_that_are_frozen},
          {"experts_resume", experts_resume, /*alone=*/true},
          {"experts_weights_files", experts_weights_files},
          {"experts_from_empty_weights", experts_from_empty_weights},
          {"experts_begin_elsewhere", experts_begin_elsewhere, /*alone=*/true},
          {"experts_go_on_elsewhere", experts_go_on_elsewhere, /*alone=*/true},
          {"refused_experts", experts_refused, /*alone=*/true},
          {"experts_autocast", experts_autocast, /*alone=*/true}};
}
