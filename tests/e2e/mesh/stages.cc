// Training pipelines on a mesh equals training one process on the joined batch: losses, norms,
// weights.
#include <c10/core/StorageImpl.h>
#include <coupler/coupler.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "expected.h"
#include "mesh_checks.h"
#include "rows.h"
#include "shared_folder.h"

using coupler::Accelerator;
using torch::nn::Sequential;

namespace {

// batches: how many are accumulated in each step.
void train_stages(Accelerator& accelerator, Sequential (*make)(), int batches = 1,
                  const coupler::PipelineOptions& options = {.micro_batches = 3}) {
  const Expected expected = train_on_rows_alone(make(), kSteps, batches);
  auto chain = on_own_values(accelerator, make());
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, options);
  EXPECT(pipeline.stages() == accelerator.mesh().size("pipeline"), "the number of stages");
  EXPECT(pipeline.stage() == accelerator.mesh().rank("pipeline"), "the stage of this rank");
  EXPECT(pipeline.virtual_stages() == (pipeline.stages() == 1 ? 1 : options.virtual_stages),
         "the number of virtual stages");
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  accelerator.set_gradient_accumulation_steps(batches);
  for (int batch = 0; batch < kSteps * batches; ++batch) {
    const Rows rows = own_rows(accelerator, joined_rows(batch), kGradients);
    const auto scope = accelerator.accumulate(chain);
    const double loss = pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
    expect_near(mean_over_replicas(accelerator, loss), expected.losses[static_cast<size_t>(batch)],
                "the loss");
    const bool steps = (batch + 1) % batches == 0;
    EXPECT(accelerator.sync_gradients() == steps, "sync_gradients");
    const double norm = accelerator.clip_grad_norm(chain, 0.1);
    expect_near(norm, steps ? expected.norms[static_cast<size_t>(batch / batches)] : 0,
                "the gradient norm");
    opt.step();
    opt.zero_grad();
  }
  accelerator.set_gradient_accumulation_steps(1);
  expect_weights(accelerator, chain, expected);
}

void staged_model(Accelerator& accelerator) { train_stages(accelerator, make_chain); }

void staged_accumulates(Accelerator& accelerator) { train_stages(accelerator, make_chain, 3); }

// The copies of a tied weight have different gradients until the window's last batch.
void staged_ties_accumulate(Accelerator& accelerator) {
  for (const int batches : {1, 2}) train_stages(accelerator, make_tied_chain, batches);
}

// A process has the first and the third part of the chain, or the second and the fourth.
void staged_virtually(Accelerator& accelerator) {
  const coupler::PipelineOptions two{.micro_batches = 4, .virtual_stages = 2};
  train_stages(accelerator, make_chain, 1, two);
  for (const int batches : {1, 2}) train_stages(accelerator, make_tied_chain, batches, two);
}

// A batch that only accumulates sends nothing: its gradients are those of this pipeline's rows. The
// next one combines both.
void staged_no_sync(Accelerator& accelerator) {
  auto chain = make_tied_chain(), alone = make_tied_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  const auto train = [&](int batch) {
    const Rows joined = joined_rows(batch);
    const Rows rows = own_rows(accelerator, joined, kGradients);
    pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
    loss_of_rows(alone->forward(joined.inputs), joined.targets).backward();
  };
  train(0);  // combined, so that the next one finds combined gradients
  expect_gradients(accelerator, *chain, *alone);
  {
    const auto scope = accelerator.no_sync(chain);
    train(1);
    train(2);
  }
  if (accelerator.mesh().size(kGradients) > 1) {
    const auto parameters = chain->parameters();
    const torch::Tensor own = (pipeline.is_first() ? parameters.front() : parameters.back()).grad();
    const torch::Tensor first = accelerator.group(kGradients).broadcast(own.clone());
    EXPECT(accelerator.mesh().rank(kGradients) == 0 || !torch::allclose(first, own),
           "gradients that only accumulate were averaged");
  }
  train(3);
  expect_gradients(accelerator, *chain, *alone);
}

// The loader's end closes a window before it is full: the mean is over the batches it has.
void staged_window_ends_early(Accelerator& accelerator) {
  auto chain = make_chain(), alone = make_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  const int64_t steps = 3, batch = 2, rows = steps * batch * accelerator.mesh().size(kSamples);
  const Rows data = joined_rows(0);
  auto loader = coupler::data_loader(
      coupler::TensorDataset(data.inputs.narrow(0, 0, rows), data.targets.narrow(0, 0, rows)),
      {.batch_size = batch});
  auto batches = accelerator.prepare(loader);
  accelerator.set_gradient_accumulation_steps(steps + 1);
  int64_t seen = 0;
  for (auto& own : batches) {
    const auto scope = accelerator.accumulate(chain);
    pipeline.train_step(own.data, own.target, loss_of_rows);
    EXPECT(accelerator.sync_gradients() == (++seen == steps), "sync_gradients");
  }
  accelerator.set_gradient_accumulation_steps(1);
  loss_of_rows(alone->forward(data.inputs.narrow(0, 0, rows)), data.targets.narrow(0, 0, rows))
      .backward();
  expect_gradients(accelerator, *chain, *alone);
}

// Two batches add their gradients: each pipeline's part of the second is averaged, too.
void staged_batches_add_up(Accelerator& accelerator) {
  auto chain = make_chain(), alone = make_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  for (int step = 0; step < 2; ++step) {
    const Rows joined = joined_rows(step);
    const Rows rows = own_rows(accelerator, joined, kGradients);
    pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
    loss_of_rows(alone->forward(joined.inputs), joined.targets).backward();
  }
  expect_gradients(accelerator, *chain, *alone);
}

// A wrong batch of one pipeline is reported on the ranks of all, and training continues.
void staged_wrong_batch(Accelerator& accelerator) {
  auto chain = make_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  const Rows rows = own_rows(accelerator, joined_rows(0), kGradients);
  const bool wrong = accelerator.mesh().rank(kGradients) == accelerator.mesh().size(kGradients) - 1;
  const std::string message = error_of([&] {
    pipeline.train_step(wrong ? rows.inputs.narrow(0, 0, 1) : rows.inputs, rows.targets,
                        loss_of_rows);
  });
  EXPECT(
      message.find("a batch of 1 rows cannot be split into 2 micro-batches") != std::string::npos,
      message);
  pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
}

void staged_resumes(Accelerator& accelerator) {
  auto chain = make_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  const auto run = [&](int step) {
    const Rows rows = own_rows(accelerator, joined_rows(step), kGradients);
    const double loss = pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
    opt.step();
    opt.zero_grad();
    return loss;
  };
  expect_resumes(accelerator, *make_chain(), run);
}

// Stages of a pipeline whose layers are divided.
torch::nn::Sequential make_divided_chain() {
  torch::manual_seed(8);
  torch::nn::Sequential chain(coupler::ColumnParallelLinear(6, 8), torch::nn::Tanh(),
                              coupler::RowParallelLinear(8, 8), torch::nn::Tanh(),
                              coupler::ColumnParallelLinear(8, 8), torch::nn::Tanh(),
                              coupler::RowParallelLinear(8, 4));
  chain->to(torch::kDouble);
  return chain;
}

// batches: how many are accumulated in each step. folder: of a checkpoint; null: none.
void train_divided_stages(Accelerator& accelerator, int batches, const SharedFolder* folder) {
  auto chain = make_divided_chain(), alone = make_divided_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2), of_alone(alone->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  accelerator.set_gradient_accumulation_steps(batches);
  const int64_t rows = 4, place = accelerator.mesh().rank(kGradients),
                places = accelerator.mesh().size(kGradients);
  std::string path;
  for (int step = 0; step < kSteps; ++step) {
    double norm = 0;
    for (int batch = 0; batch < batches; ++batch) {
      auto generator =
          at::detail::createCPUGenerator(static_cast<uint64_t>(300 + step * batches + batch));
      const auto inputs = torch::randn({rows * places, 6}, generator, torch::kDouble);
      const auto targets = torch::randint(0, 4, {rows * places}, generator, torch::kLong);
      const auto scope = accelerator.accumulate(chain);
      const double loss = pipeline.train_step(inputs.narrow(0, place * rows, rows),
                                              targets.narrow(0, place * rows, rows), loss_of_rows);
      const auto expected = loss_of_rows(alone->forward(inputs), targets);
      (expected / batches).backward();
      expect_near(mean_over_replicas(accelerator, loss), expected.item<double>(), "the loss");
      norm = accelerator.clip_grad_norm(chain, 0.1);
      opt.step();
      opt.zero_grad();
    }
    expect_near(norm, torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1),
                "the gradient norm");
    of_alone.step();
    of_alone.zero_grad();
    if (folder != nullptr && step == kSteps / 2) path = accelerator.save_state(folder->path());
  }
  accelerator.set_gradient_accumulation_steps(1);
  Expected expected;
  expected.weights = parameters_of(*alone);
  expect_weights(accelerator, chain, expected);
  if (folder != nullptr) expect_each_saved_once(accelerator, path, *make_divided_chain());
}

void stages_of_divided_layers(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  train_divided_stages(accelerator, 1, &folder);
}

void stages_accumulate_divided(Accelerator& accelerator) {
  train_divided_stages(accelerator, 3, nullptr);
}

// In checkpoint.dir, which jobs on other meshes share: with stages if there is a pipeline.
void continue_in_stages(Accelerator& accelerator, int first, int steps, bool saves) {
  const Expected expected = train_on_rows_alone(make_divided_chain(), first + steps);
  auto chain = make_divided_chain();
  shift(*chain, first + accelerator.rank());
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  std::optional<coupler::PipelineParallel> pipeline;
  if (accelerator.mesh().size("pipeline") > 1)
    pipeline.emplace(coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2}));
  Sequential net = pipeline ? chain : accelerator.prepare(chain);
  auto opt = accelerator.prepare(optimizer);
  if (first > 0) accelerator.load_state();
  const auto run = [&](int step) {
    const Rows rows = own_rows(accelerator, joined_rows(step), kGradients);
    if (pipeline) return pipeline->train_step(rows.inputs, rows.targets, loss_of_rows);
    const torch::Tensor loss = loss_of_rows(net->forward(rows.inputs), rows.targets);
    accelerator.backward(loss);
    return loss.item<double>();
  };
  train_as_expected(accelerator, net, opt, expected, first, first + steps, run);
  expect_weights(accelerator, net, expected);
  if (saves) accelerator.save_state();
}

void staged_begins_elsewhere(Accelerator& accelerator) {
  continue_in_stages(accelerator, 0, 2, /*saves=*/true);
}
void staged_goes_on_elsewhere(Accelerator& accelerator) {
  continue_in_stages(accelerator, 2, 2, /*saves=*/false);
}

// A block that counts how many of its intermediate results of earlier micro-batches have memory
// when the next one comes.
struct SeenBlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    most = std::max(most, std::count_if(seen.begin(), seen.end(),
                                        [](const auto& one) { return !one.expired(); }));
    const torch::Tensor inside = torch::tanh(up(x));
    seen.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        inside.storage().unsafeGetStorageImpl()));
    return down(inside);
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 8));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(8, 6));
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
  std::ptrdiff_t most = 0;
};
TORCH_MODULE(SeenBlock);

Sequential make_seen_chain(int stages) {
  torch::manual_seed(9);
  Sequential chain;
  for (int stage = 0; stage < stages; ++stage) {
    chain->push_back("kept_" + std::to_string(stage), SeenBlock());
    chain->push_back("again_" + std::to_string(stage), SeenBlock());
  }
  chain->to(torch::kDouble);
  return chain;
}

// Needs memory.activation_checkpointing = ["again_*"]. The last stage has one micro-batch at a
// time.
void stages_free_activations(Accelerator& accelerator) {
  const int stages = accelerator.mesh().size("pipeline");
  auto chain = make_seen_chain(stages), alone = make_seen_chain(stages);
  std::vector<std::string> points;
  for (int stage = 1; stage < stages; ++stage) points.push_back("kept_" + std::to_string(stage));
  auto pipeline = coupler::prepare_pipeline(accelerator, chain,
                                            {.split_points = points, .micro_batches = 2 * stages});
  const Rows joined = joined_rows(0), rows = own_rows(accelerator, joined, kGradients);
  pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
  const auto most = [&](const char* name) {
    return chain->named_children()[name + std::to_string(pipeline.stage())]->as<SeenBlock>()->most;
  };
  const std::ptrdiff_t ahead = stages - 1 - pipeline.stage();
  EXPECT(most("kept_") == ahead, "a stage runs other forwards ahead than its schedule says");
  EXPECT(most("again_") == 0, "activations of a checkpointed block stay in memory");
  loss_of_rows(alone->forward(joined.inputs), joined.targets).backward();
  expect_gradients(accelerator, *chain, *alone);
}

}  // namespace

std::vector<Check> mesh_stage_checks() {
  return {{"staged_model", staged_model},
          {"staged_accumulates", staged_accumulates},
          {"staged_ties_accumulate", staged_ties_accumulate},
          {"staged_virtually", staged_virtually},
          {"staged_no_sync", staged_no_sync},
          {"staged_window_ends_early", staged_window_ends_early},
          {"staged_batches_add_up", staged_batches_add_up},
          {"staged_wrong_batch", staged_wrong_batch},
          {"staged_resumes", staged_resumes, /*alone=*/true},
          {"staged_begins_elsewhere", staged_begins_elsewhere, /*alone=*/true},
          {"staged_goes_on_elsewhere", staged_goes_on_elsewhere, /*alone=*/true},
          {"stages_of_divided_layers", stages_of_divided_layers, /*alone=*/true},
          {"stages_free_activations", stages_free_activations, /*alone=*/true},
          {"stages_accumulate_divided", stages_accumulate_divided, /*alone=*/true}};
}
