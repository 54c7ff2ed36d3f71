// Training on a mesh equals training one process on the joined batch: losses, norms, weights.
#include <coupler/coupler.h>

#include "expected.h"
#include "mesh_checks.h"
#include "shared_folder.h"

using coupler::Accelerator;

namespace {

constexpr int64_t kJoinedRows = 24;

torch::nn::Sequential make_chain() {
  torch::manual_seed(5);
  torch::nn::Sequential chain(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                              torch::nn::Tanh(), torch::nn::Linear(8, 4));
  chain->to(torch::kDouble);
  return chain;
}

struct Rows {
  torch::Tensor inputs, targets;
};

Rows joined_rows(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step));
  return {torch::randn({kJoinedRows, 6}, generator, torch::kDouble),
          torch::randint(0, 4, {kJoinedRows}, generator, torch::kLong)};
}

// A part of the joined rows for each rank of the group. Ranks of a context group, which would get
// the same rows and divide each sequence, divide the rows instead: the means are the same.
Rows own_rows(Accelerator& accelerator, const Rows& joined, const char* group) {
  const coupler::Mesh& mesh = accelerator.mesh();
  const int64_t rows = kJoinedRows / mesh.size(group);
  return {joined.inputs.narrow(0, mesh.rank(group) * rows, rows),
          joined.targets.narrow(0, mesh.rank(group) * rows, rows)};
}

torch::Tensor loss_of_rows(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output, targets);
}

Expected train_alone(int steps) {
  auto chain = make_chain();
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  Expected expected;
  for (int step = 0; step < steps; ++step) {
    const Rows rows = joined_rows(step);
    const auto loss = loss_of_rows(chain->forward(rows.inputs), rows.targets);
    optimizer.zero_grad();
    loss.backward();
    expected.losses.push_back(loss.item<double>());
    expected.norms.push_back(torch::nn::utils::clip_grad_norm_(chain->parameters(), 0.1));
    optimizer.step();
  }
  expected.weights = parameters_of(*chain);
  return expected;
}

// Other initial values on other ranks: prepare gives all of them rank 0's.
torch::nn::Sequential make_own_chain(Accelerator& accelerator) {
  auto chain = make_chain();
  if (accelerator.rank() == 0) return chain;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : chain->parameters()) parameter.add_(accelerator.rank());
  return chain;
}

void whole_model(Accelerator& accelerator) {
  const Expected expected = train_alone(kSteps);
  auto chain = make_own_chain(accelerator);
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(chain, optimizer);
  for (int step = 0; step < kSteps; ++step) {
    const Rows rows = own_rows(accelerator, joined_rows(step), kGradients);
    const auto loss = loss_of_rows(net->forward(rows.inputs), rows.targets);
    accelerator.backward(loss);
    expect_near(mean_over_replicas(accelerator, loss.item<double>()),
                expected.losses[static_cast<size_t>(step)], "the loss");
    expect_near(accelerator.clip_grad_norm(net, 0.1), expected.norms[static_cast<size_t>(step)],
                "the gradient norm");
    opt.step();
    opt.zero_grad();
  }
  expect_weights(accelerator, net, expected);
}

// Sums over items, of which ranks have different numbers.
void weighted_sums(Accelerator& accelerator) {
  auto chain = make_chain(), alone = make_chain();
  torch::optim::SGD optimizer(chain->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(chain, optimizer);
  const Rows joined = joined_rows(0);
  const int place = accelerator.mesh().rank(kGradients),
            places = accelerator.mesh().size(kGradients);
  // The first rank has all rows that the others' one leaves.
  const int64_t rows = place == 0 ? kJoinedRows - places + 1 : 1;
  const int64_t begin = place == 0 ? 0 : kJoinedRows - places + place;
  const auto sum =
      torch::cross_entropy_loss(net->forward(joined.inputs.narrow(0, begin, rows)),
                                joined.targets.narrow(0, begin, rows), {}, at::Reduction::Sum);
  accelerator.backward(sum, rows);
  loss_of_rows(alone->forward(joined.inputs), joined.targets).backward();
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    const auto ours = accelerator.gradient(net->parameters()[i]);
    EXPECT(torch::allclose(ours, alone->parameters()[i].grad(), 1e-9, 1e-12), "a gradient differs");
  }
  opt.zero_grad();
}

// Two more steps after a checkpoint are the same again, for a loader, too.
void whole_resumes(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  auto chain = make_chain();
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  const Rows data = joined_rows(1);
  auto loader = coupler::data_loader(coupler::TensorDataset(data.inputs, data.targets),
                                     {.batch_size = 1, .shuffle = true, .seed = 2});
  auto [net, opt, batches] = accelerator.prepare(chain, optimizer, loader);
  const auto epoch = [&] {
    double sum = 0;
    for (auto& batch : batches) {
      const auto loss = loss_of_rows(net->forward(batch.data), batch.target);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      sum += loss.item<double>();
    }
    return sum;
  };
  epoch();
  const std::string path = accelerator.save_state(folder.path());
  expect_each_saved_once(accelerator, path, *make_chain());
  const double second = epoch();
  accelerator.load_state(path);
  expect_near(epoch(), second, "the loss after load_state");
}

// Parameters are averaged now and then, over the replicas only.
void whole_local_sgd(Accelerator& accelerator) {
  if (accelerator.mesh().size("shard") > 1) return;  // refused: no rank has the whole model
  auto chain = make_chain();
  torch::optim::SGD optimizer(chain->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(chain, optimizer);
  {
    coupler::LocalSGD local(accelerator, net, {.local_sgd_steps = 2});
    for (int step = 0; step < 2; ++step) {
      const Rows rows = own_rows(accelerator, joined_rows(step), kSamples);
      accelerator.backward(loss_of_rows(net->forward(rows.inputs), rows.targets));
      opt.step();
      opt.zero_grad();
      local.step();
    }
  }
  for (const auto& parameter : net->parameters())
    expect_same_everywhere(accelerator, parameter, "a parameter after LocalSGD");
}

void staged_model(Accelerator& accelerator) {
  const Expected expected = train_alone(kSteps);
  auto chain = make_own_chain(accelerator);
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 3});
  EXPECT(pipeline.stages() == accelerator.mesh().size("pipeline"), "the number of stages");
  EXPECT(pipeline.stage() == accelerator.mesh().rank("pipeline"), "the stage of this rank");
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  for (int step = 0; step < kSteps; ++step) {
    const Rows rows = own_rows(accelerator, joined_rows(step), kGradients);
    const double loss = pipeline.train_step(rows.inputs, rows.targets, loss_of_rows);
    expect_near(mean_over_replicas(accelerator, loss), expected.losses[static_cast<size_t>(step)],
                "the loss");
    expect_near(accelerator.clip_grad_norm(chain, 0.1), expected.norms[static_cast<size_t>(step)],
                "the gradient norm");
    opt.step();
    opt.zero_grad();
  }
  expect_weights(accelerator, chain, expected);
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
  for (size_t i = 0; i < chain->parameters().size(); ++i) {
    const auto ours = accelerator.gradient(chain->parameters()[i]);
    EXPECT(torch::allclose(ours, alone->parameters()[i].grad(), 1e-9, 1e-12), "a gradient differs");
  }
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
  const SharedFolder folder(accelerator);
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
  run(0);
  const std::string path = accelerator.save_state(folder.path());
  expect_each_saved_once(accelerator, path, *make_chain());
  const double second = run(1);
  accelerator.load_state(path);
  EXPECT(run(1) == second, "it continues differently after load_state");
}

void refused_models(Accelerator& accelerator) {
  torch::nn::Linear model(2, 2);
  const std::string message = error_of([&] { accelerator.prepare(model); });
  EXPECT(message.find(check_options().expect) != std::string::npos, message);
}

}  // namespace

std::vector<Check> mesh_training_checks() {
  return {{"whole_model", whole_model},
          {"whole_weighted_sums", weighted_sums},
          {"whole_local_sgd", whole_local_sgd},
          {"whole_resumes", whole_resumes, /*alone=*/true},
          {"staged_model", staged_model},
          {"staged_batches_add_up", staged_batches_add_up},
          {"staged_wrong_batch", staged_wrong_batch},
          {"staged_resumes", staged_resumes, /*alone=*/true},
          {"refused_models", refused_models, /*alone=*/true}};
}
