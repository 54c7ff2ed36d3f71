// A pipeline saves the whole model, under the names of the unsplit model.
#include <coupler/coupler.h>

#include <filesystem>

#include "models.h"
#include "shared_folder.h"

using coupler::Accelerator;
using coupler::prepare_pipeline;

namespace {

void save_model(Accelerator& accelerator) {
  Tied model = make_tied_model(), unsplit = make_tied_model();
  auto pipeline = prepare_pipeline(accelerator, model);
  const SharedFolder folder(accelerator);
  accelerator.save_model(model, folder.path());
  const auto saved = coupler::SafeTensors::open(folder.path() + "/model.safetensors");
  const auto expected = unsplit->named_parameters();
  EXPECT(saved.names().size() == expected.size(), "the number of tensors differs from the model's");
  for (const auto& item : expected) {
    EXPECT(torch::equal(saved.tensor(item.key()), item.value()), item.key() + " differs");
  }
  accelerator.wait_for_everyone();
}

// Four steps; the last two are repeated from a checkpoint.
void save_and_load_state(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  Tied model = make_tied_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 2});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  const auto run = [&](int step) {
    const auto [tokens, targets] = token_batch(step, 4);
    const double loss = pipeline.train_step(tokens, targets, token_loss);
    opt.step();
    opt.zero_grad();
    return loss;
  };
  run(0);
  run(1);
  const std::string path = accelerator.save_state(folder.path());
  const double third = run(2), fourth = run(3);
  accelerator.load_state(path);
  EXPECT(run(2) == third && run(3) == fourth, "it continues differently after load_state");
}

}  // namespace

std::vector<Check> pipeline_saving_checks() {
  return {{"save_model", save_model, /*alone=*/true},
          {"save_and_load_state", save_and_load_state, /*alone=*/true}};
}
