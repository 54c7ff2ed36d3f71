// Models divided over a tensor group train, save and load as the whole model in one process does.
#include <coupler/coupler.h>
#include <coupler/optimizers.h>
#include <torch/script.h>

#include <cmath>

#include "mesh_checks.h"
#include "shared_folder.h"
#include "texts.h"

using coupler::Accelerator;

namespace {

// Forward and backward. Returns this rank's loss.
double run_texts(Accelerator& accelerator, DividedNet& net, int step) {
  const torch::Tensor loss =
      loss_of_texts(net, own_texts(accelerator, joined_texts(step), kGradients));
  accelerator.backward(loss);
  return loss.item<double>();
}

void trains(Accelerator& accelerator, const std::string& head) {
  const Expected expected = train_on_texts_alone(kSteps);
  DividedNet model(head);
  shift(*model, accelerator.rank());
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  train_as_expected(accelerator, net, opt, expected, 0, kSteps,
                    [&, &net = net](int step) { return run_texts(accelerator, net, step); });
  expect_weights(accelerator, net, expected);
}

void divided_trains(Accelerator& accelerator) { trains(accelerator, "colwise_gather"); }
void divided_loss_trains(Accelerator& accelerator) { trains(accelerator, "vocab"); }

// Every rank has its part of the weights only, and its gradients are whole when asked for.
void divided_parts(Accelerator& accelerator) {
  DividedNet model, alone("");
  auto net = accelerator.prepare(model);
  const int64_t ranks = accelerator.mesh().size("tensor");
  if (accelerator.mesh().size("shard") == 1) {
    EXPECT(net->tokens->weight.size(0) == kVocabulary / ranks, "the embedding is whole");
    const auto& block = *net->blocks[0]->as<DividedBlock>();
    EXPECT(block.up->weight.size(0) == 3 * kWidth / ranks, "a colwise weight is whole");
    EXPECT(block.up->bias.size(0) == 3 * kWidth / ranks, "a colwise bias is whole");
    EXPECT(block.down->weight.size(1) == 3 * kWidth / ranks, "a rowwise weight is whole");
    EXPECT(block.down->bias.size(0) == kWidth, "a rowwise bias is divided");
  }
  run_texts(accelerator, net, 0);
  loss_of_texts(alone, joined_texts(0)).backward();
  expect_gradients(accelerator, *net, *alone);
}

void divided_norms_of_some_and_largest(Accelerator& accelerator) {
  DividedNet model, alone("");
  auto net = accelerator.prepare(model);
  run_texts(accelerator, net, 0);
  loss_of_texts(alone, joined_texts(0)).backward();
  const auto& block = *net->blocks[0]->as<DividedBlock>();
  const auto& other = *alone->blocks[0]->as<DividedBlock>();
  expect_near(accelerator.clip_grad_norm({block.up->weight, block.norm->weight}, 1e9),
              torch::nn::utils::clip_grad_norm_({other.up->weight, other.norm->weight}, 1e9),
              "the norm of two gradients");
  expect_near(accelerator.clip_grad_norm(net, 1e9, INFINITY),
              torch::nn::utils::clip_grad_norm_(parameters_of(*alone).values(), 1e9, INFINITY),
              "the largest gradient");
}

// Two windows of two batches each.
void divided_accumulates(Accelerator& accelerator) {
  DividedNet model, alone("");
  torch::optim::SGD optimizer(model->parameters(), 0.1),
      of_alone(parameters_of(*alone).values(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  accelerator.set_gradient_accumulation_steps(2);
  for (int step = 0; step < 4; ++step) {
    const auto scope = accelerator.accumulate(net);
    run_texts(accelerator, net, step);
    opt.step();
    opt.zero_grad();
    (loss_of_texts(alone, joined_texts(step)) / 2).backward();
    if (step % 2 == 0) continue;
    of_alone.step();
    of_alone.zero_grad();
  }
  accelerator.set_gradient_accumulation_steps(1);
  Expected expected;
  expected.weights = parameters_of(*alone);
  expect_weights(accelerator, net, expected);
}

void divided_resumes(Accelerator& accelerator) {
  DividedNet model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto run = [&, &net = net, &opt = opt](int step) {
    const double loss = run_texts(accelerator, net, step);
    opt.step();
    opt.zero_grad();
    return loss;
  };
  expect_resumes(accelerator, *DividedNet(""), run);
}

// In checkpoint.dir, which jobs on other meshes share.
void continue_training(Accelerator& accelerator, int first, int steps, bool saves) {
  const Expected expected = train_on_texts_alone(first + steps);
  DividedNet model;
  if (first > 0) shift(*model, 1 + accelerator.rank());
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  if (first > 0) accelerator.load_state();
  train_as_expected(accelerator, net, opt, expected, first, first + steps,
                    [&, &net = net](int step) { return run_texts(accelerator, net, step); });
  expect_weights(accelerator, net, expected);
  if (saves) accelerator.save_state();
}

void divided_begins_elsewhere(Accelerator& accelerator) {
  continue_training(accelerator, 0, 2, /*saves=*/true);
}
void divided_goes_on_elsewhere(Accelerator& accelerator) {
  continue_training(accelerator, 2, 2, /*saves=*/false);
}

void divided_weights_files(Accelerator& accelerator) {
  expect_weights_files(accelerator, DividedNet(), *DividedNet(""));
}

void divided_from_empty_weights(Accelerator& accelerator) {
  expect_from_empty_weights<DividedNet>(accelerator, *DividedNet(""));
}

// Weights of several chunks, which are divided while they are drawn.
struct LargeImpl : torch::nn::Module, coupler::TensorParallelLayers {
  explicit LargeImpl(int seed) {
    torch::manual_seed(seed);
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(12000, 96).padding_idx(3)));
    up = register_module("up", torch::nn::Linear(96, 12000));
    down = register_module("down", torch::nn::Linear(12000, 96));
    const at::NoGradGuard no_grad;
    down->weight.normal_(0, 0.02);
  }
  coupler::TensorPlan tensor_plan(int) const override {
    return {{"words", "vocab"}, {"up", "colwise"}, {"down", "rowwise"}};
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Large);

// Every rank gets parts of rank 0's values.
void divided_large_weights(Accelerator& accelerator) {
  std::shared_ptr<LargeImpl> model;
  {
    const coupler::EmptyWeights empty;
    model = std::make_shared<LargeImpl>(8 + accelerator.rank());
  }
  Large net(model);
  net = accelerator.prepare(net);
  expect_same_weights(accelerator, net, LargeImpl(8));
}

// In bf16, ranks compute the same.
void divided_autocast(Accelerator& accelerator) {
  DividedNet model;
  model->to(torch::kFloat);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  expect_learns(accelerator, opt, 30, [&, &net = net] {
    const auto scope = accelerator.autocast();
    return loss_of_texts(net, own_texts(accelerator, joined_texts(0), kGradients));
  });
  const auto& block = *net->blocks[0]->as<DividedBlock>();
  if (accelerator.mesh().size("shard") > 1) return;
  for (const auto& same : {block.norm->weight, block.head_norm->bias, block.down->bias})
    expect_same_everywhere(accelerator, same, "an undivided parameter");
}

// A gradient that overflows in one rank's part skips the step on all.
void divided_fp16(Accelerator& accelerator) {
  DividedNet model;
  model->to(torch::kFloat);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto loss_of = [&, &net = net] {
    const auto scope = accelerator.autocast();
    return loss_of_texts(net, own_texts(accelerator, joined_texts(0), kGradients));
  };
  const torch::Tensor own = net->blocks[0]->as<DividedBlock>()->up->weight,
                      before = own.detach().clone();
  const double scale = accelerator.loss_scale();
  accelerator.backward(loss_of());
  if (accelerator.rank() == 1) own.mutable_grad().fill_(INFINITY);
  opt.step();
  opt.zero_grad();
  EXPECT(accelerator.optimizer_step_was_skipped(), "a rank steps without the others");
  EXPECT(torch::equal(own.detach(), before), "a skipped step changed a weight");
  EXPECT(accelerator.loss_scale() < scale, "the loss scale is as before");
  expect_learns(accelerator, opt, 40, loss_of);
}

// y = x W with W of [in, out], as GPT-2's layers; three blocks of outputs.
struct Conv1DImpl : torch::nn::Module {
  Conv1DImpl(int64_t in, int64_t out) : Module("Conv1D") {
    weight = register_parameter("weight", torch::randn({in, out}, torch::kDouble));
    bias = register_parameter("bias", torch::randn({out}, torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::addmm(bias, x, weight); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(Conv1D);

struct FusedImpl : torch::nn::Module, coupler::TensorParallelLayers {
  FusedImpl() {
    torch::manual_seed(3);
    all = register_module("all", Conv1D(4, 12));
    out = register_module("out", Conv1D(4, 5));
  }
  coupler::TensorPlan tensor_plan(int) const override {
    return {{"all", "colwise/3"}, {"out", "rowwise"}};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = all->forward(x).chunk(3, -1);
    return out->forward(parts[0] * parts[1].tanh() + parts[2]);
  }
  Conv1D all{nullptr}, out{nullptr};
};
TORCH_MODULE(Fused);

void divided_blocks_and_transposed_weights(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  Fused model, alone;
  auto net = accelerator.prepare(model);
  auto mine = accelerator.broadcast(torch::randn({7, 4}, torch::kDouble)).requires_grad_(true);
  auto theirs = mine.detach().clone().requires_grad_(true);
  const torch::Tensor ours = net->forward(mine), expected = alone->forward(theirs);
  EXPECT(torch::allclose(ours, expected, 1e-9, 1e-12), "the outputs differ");
  accelerator.backward(ours.square().sum());
  expected.square().sum().backward();
  EXPECT(torch::allclose(mine.grad(), theirs.grad(), 1e-9, 1e-12), "the inputs' gradients differ");
  expect_gradients(accelerator, *net, *alone);
  accelerator.save_model(net, folder.path());
  const auto saved = coupler::SafeTensors::open(folder.path() + "/model.safetensors");
  for (const auto& item : parameters_of(*alone))
    EXPECT(torch::equal(saved.tensor(item.key()), item.value()), item.key() + " is not as made");
}

struct ModulesImpl : torch::nn::Module {
  ModulesImpl() {
    torch::manual_seed(4);
    words = register_module("words", coupler::VocabParallelEmbedding(8, 4));
    up = register_module("up", coupler::ColumnParallelLinear(4, 8));
    down = register_module("down", coupler::RowParallelLinear(8, 4));
    alone_up = register_module("alone_up", coupler::ColumnParallelLinear(
                                               torch::nn::LinearOptions(4, 8).bias(false), true));
    alone_down = register_module("alone_down", coupler::RowParallelLinear(8, 4, false));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor x = words->forward(ids);
    return alone_down->forward(alone_up->forward(x + down->forward(up->forward(x).tanh())));
  }
  coupler::VocabParallelEmbedding words{nullptr};
  coupler::ColumnParallelLinear up{nullptr}, alone_up{nullptr};
  coupler::RowParallelLinear down{nullptr}, alone_down{nullptr};
};
TORCH_MODULE(Modules);

void divided_modules(Accelerator& accelerator) {
  Modules model, alone;
  auto net = accelerator.prepare(model);
  const torch::Tensor ids = torch::arange(8).view({2, 4});
  const torch::Tensor ours = net->forward(ids), expected = alone->forward(ids);
  EXPECT(torch::allclose(ours, expected, 1e-9, 1e-12), "the outputs differ");
  accelerator.backward(ours.square().sum());
  expected.square().sum().backward();
  expect_gradients(accelerator, *net, *alone);
}

// A scripted MLP, whose plan is in the job's configuration.
void scripted(Accelerator& accelerator) {
  const auto make = [] {
    torch::manual_seed(6);
    torch::jit::Module module("Mlp");
    for (const auto& [name, out, in] : {std::tuple("up", 8, 4), std::tuple("down", 4, 8)}) {
      torch::jit::Module layer("Linear");
      layer.register_parameter("weight",
                               torch::randn({out, in}, torch::kDouble).requires_grad_(true), false);
      layer.register_parameter("bias", torch::randn({out}, torch::kDouble).requires_grad_(true),
                               false);
      layer.define("def forward(self, x):\n    return torch.linear(x, self.weight, self.bias)\n");
      module.register_module(name, layer);
    }
    module.define(
        "def forward(self, x):\n    return self.down.forward(torch.tanh(self.up.forward("
        "x)))\n");
    return module;
  };
  torch::jit::Module alone = make(), model = make();
  auto net = accelerator.prepare(model);
  for (int round = 0; round < 4; ++round) {  // the executor optimizes after the first
    auto x = torch::arange(12, torch::kDouble).view({3, 4}).add(round).div(12);
    auto mine = x.clone().requires_grad_(true), theirs = x.clone().requires_grad_(true);
    const torch::Tensor ours = net.forward({mine}).toTensor();
    const torch::Tensor expected = alone.forward({theirs}).toTensor();
    EXPECT(torch::allclose(ours, expected, 1e-9, 1e-12), "the outputs differ");
    accelerator.backward(ours.square().sum());
    expected.square().sum().backward();
    EXPECT(torch::allclose(mine.grad(), theirs.grad(), 1e-9, 1e-12),
           "the inputs' gradients differ in round " + std::to_string(round));
  }
  std::map<std::string, torch::Tensor> own;
  for (const auto& item : net.named_parameters()) own[item.name] = item.value;
  for (const auto& item : alone.named_parameters()) {
    EXPECT(torch::allclose(accelerator.gradient(own[item.name]), item.value.grad(), 1e-9, 1e-12),
           "the gradient of " + item.name + " differs");
  }
}

// Against torch's, for every reduction, with targets that do not count.
void divided_cross_entropy(Accelerator& accelerator) {
  if (accelerator.mesh().size("tensor") == 1) return;
  Modules any;
  auto keeps_the_group = accelerator.prepare(any);
  const int64_t part = 5, ranks = accelerator.mesh().size("tensor"),
                rank = accelerator.mesh().rank("tensor");
  auto generator = at::detail::createCPUGenerator(9);
  const torch::Tensor all = torch::randn({7, part * ranks}, generator, torch::kDouble) * 30;
  torch::Tensor targets = torch::randint(0, part * ranks, {7}, generator, torch::kLong);
  targets[2] = -100;
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    const torch::Tensor own = all.narrow(1, rank * part, part).contiguous().requires_grad_(true);
    const torch::Tensor whole = all.clone().requires_grad_(true);
    const torch::Tensor ours =
        coupler::parallel_cross_entropy(own, targets, {.reduction = reduction});
    const torch::Tensor expected = torch::cross_entropy_loss(whole, targets, {}, reduction);
    EXPECT(torch::allclose(ours, expected, 1e-9, 1e-12), "the losses differ");
    const torch::Tensor sum = ours.square().sum();
    expect_error([&] { torch::autograd::grad({sum}, {own}, {}, true, /*create_graph=*/true); },
                 "gradients of gradients");
    sum.backward();
    expected.square().sum().backward();
    EXPECT(torch::allclose(own.grad(), whole.grad().narrow(1, rank * part, part), 1e-9, 1e-12),
           "the gradients differ");
  }
  const std::string out_of_range = error_of(
      [&] { coupler::parallel_cross_entropy(all.narrow(1, 0, part), targets + part * ranks); });
  EXPECT(out_of_range.find("classes together") != std::string::npos, out_of_range);
  const std::string shapes = error_of([&] {
    coupler::parallel_cross_entropy(all.narrow(1, 0, part), targets.view({1, 7}));
  });
  EXPECT(shapes.find("targets [1, 7]") != std::string::npos, shapes);
}

// What goes wrong in divided layers is said with their names.
void divided_wrong_use(Accelerator& accelerator) {
  if (accelerator.mesh().size("tensor") == 1 || accelerator.mesh().size("shard") > 1) return;
  Modules model;
  auto net = accelerator.prepare(model);
  expect_error(
      [&] {
        net->down->forward(torch::ones({2, 8}, torch::kDouble));
      },
      " ranks (the model's plan: \"down = rowwise\") and takes inputs of");
  expect_error([&] { net->words->forward(torch::tensor({8})); },
               "'words' has 8 rows, but is asked for row 8");
  expect_error([&] { net->up->weight.square().sum(); }, "uses the weight of 'up'");
  EXPECT(net->up->weight.detach().square().sum().item<double>() > 0, "values are readable");
  expect_error([&] { coupler::local_heads(accelerator.mesh().size("tensor") + 1); },
               "heads cannot be divided");
  // Two heads of the whole layer's size would be other heads.
  struct AttentionImpl : torch::nn::Module, coupler::TensorParallelLayers {
    AttentionImpl() { q = register_module("q", torch::nn::Linear(4, 16)); }
    coupler::TensorPlan tensor_plan(int) const override { return {{"q", "colwise", 4}}; }
    torch::nn::Linear q{nullptr};
  };
  const auto attention = accelerator.prepare(std::make_shared<AttentionImpl>());
  expect_error(
      [&] {
        attention->q->forward(torch::ones({2, 3, 4})).view({2, 3, 4, -1});
      },
      "'q' is divided over");
  const torch::Tensor x = torch::ones({2, 4}, torch::kDouble).requires_grad_(true);
  const torch::Tensor y = net->down->forward(net->up->forward(x)).sum();
  expect_error([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); },
               "gradients of gradients");
}

void whole_matrix_optimizers_are_refused(Accelerator& accelerator) {
  if (accelerator.mesh().size("tensor") == 1) return;
  Modules model;
  coupler::Adafactor optimizer(model->parameters(), coupler::AdafactorOptions());
  expect_error([&] { accelerator.prepare(model, optimizer); }, "needs whole matrices");
}

struct PairImpl : torch::nn::Module {
  PairImpl() {
    up = register_module("up", torch::nn::Linear(4, 6));
    down = register_module("down", torch::nn::Linear(6, 4));
    words = register_module("words", torch::nn::Embedding(6, 4));
    tied = register_module("tied", TiedHead(words->weight));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  TiedHead tied{nullptr};
  torch::nn::Embedding words{nullptr};
};
TORCH_MODULE(Pair);

// --expect is the error; the plan is the job's.
void refused_plan(Accelerator& accelerator) {
  Pair model;
  expect_error([&] { accelerator.prepare(model); }, check_options().expect);
  // The model is as before.
  EXPECT(model->up->forward(torch::ones({1, 4})).size(1) == 6, "the model was changed");
}

}  // namespace

std::vector<Check> mesh_tensor_checks() {
  return {{"divided_trains", divided_trains},
          {"divided_loss_trains", divided_loss_trains},
          {"divided_parts", divided_parts},
          {"divided_norms_of_some_and_largest", divided_norms_of_some_and_largest},
          {"divided_accumulates", divided_accumulates},
          {"divided_weights_files", divided_weights_files},
          {"divided_from_empty_weights", divided_from_empty_weights},
          {"divided_large_weights", divided_large_weights},
          {"divided_blocks_and_transposed_weights", divided_blocks_and_transposed_weights},
          {"divided_modules", divided_modules},
          {"divided_cross_entropy", divided_cross_entropy},
          {"divided_wrong_use", divided_wrong_use},
          {"divided_whole_matrix_optimizers_are_refused", whole_matrix_optimizers_are_refused},
          {"divided_autocast", divided_autocast, /*alone=*/true},
          {"divided_fp16", divided_fp16, /*alone=*/true},
          {"divided_resumes", divided_resumes, /*alone=*/true},
          {"divided_begins_elsewhere", divided_begins_elsewhere, /*alone=*/true},
          {"divided_goes_on_elsewhere", divided_goes_on_elsewhere, /*alone=*/true},
          {"scripted_mlp", scripted, /*alone=*/true},
          {"refused_plan", refused_plan, /*alone=*/true}};
}
