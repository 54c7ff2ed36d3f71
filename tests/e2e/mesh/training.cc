// Training whole models on a mesh equals training one process on the joined batch: losses, norms,
// weights.
#include <coupler/coupler.h>

#include "expected.h"
#include "mesh_checks.h"
#include "rows.h"
#include "shared_folder.h"

using coupler::Accelerator;

namespace {

void whole_model(Accelerator& accelerator) {
  const Expected expected = train_on_rows_alone(make_chain(), kSteps);
  auto chain = on_own_values(accelerator, make_chain());
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(chain, optimizer);
  const auto run = [&, &net = net](int step) {
    const Rows rows = own_rows(accelerator, joined_rows(step), kGradients);
    const auto loss = loss_of_rows(net->forward(rows.inputs), rows.targets);
    accelerator.backward(loss);
    return loss.item<double>();
  };
  train_as_expected(accelerator, net, opt, expected, 0, kSteps, run);
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
  expect_gradients(accelerator, *net, *alone);
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
  const auto epoch = [&, &net = net, &opt = opt, &batches = batches] {
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

// What averages gradients is made for the parameters that are trained at prepare.
void unfrozen_later(Accelerator& accelerator) {
  auto chain = make_chain();
  const torch::Tensor first = chain->parameters().front();
  first.set_requires_grad(false);
  torch::optim::SGD optimizer(chain->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(chain, optimizer);
  const auto step = [&, &net = net, &opt = opt] {
    const Rows rows = own_rows(accelerator, joined_rows(0), kGradients);
    accelerator.backward(loss_of_rows(net->forward(rows.inputs), rows.targets));
    opt.step();
    opt.zero_grad();
  };
  step();
  first.set_requires_grad(true);
  expect_error(step, "'0.weight' was frozen when its model");
  first.set_requires_grad(false);
  step();
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
          {"whole_unfrozen_later", unfrozen_later},
          {"whole_resumes", whole_resumes, /*alone=*/true},
          {"refused_models", refused_models, /*alone=*/true}};
}
