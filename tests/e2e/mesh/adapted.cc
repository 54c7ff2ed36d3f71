// LoRA products of divided layers train, are saved and merged as one process does it.
#include <coupler/coupler.h>
#include <coupler/lora.h>

#include "mesh_checks.h"
#include "shared_folder.h"
#include "texts.h"

using coupler::Accelerator;

namespace {

// With the same values wherever it is called.
coupler::LoraAdapter adapt(torch::nn::Module& model) {
  torch::manual_seed(31);
  return coupler::lora(model,
                       {.rank = 2, .alpha = 4, .target_modules = {"q", "v", "o", "up", "down"}});
}

double own_loss(Accelerator& accelerator, DividedNet& net) {
  const torch::NoGradGuard no_grad;
  return mean_over_replicas(
      accelerator,
      loss_of_texts(net, own_texts(accelerator, joined_texts(9), kGradients)).item<double>());
}

void lora_trains(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  DividedNet model, alone("");
  const coupler::LoraAdapter adapter = adapt(*model), of_alone = adapt(*alone);
  torch::optim::AdamW optimizer(adapter.parameters(), 1e-2),
      other_optimizer(of_alone.parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor loss =
        loss_of_texts(net, own_texts(accelerator, joined_texts(step), kGradients));
    accelerator.backward(loss);
    const torch::Tensor expected = loss_of_texts(alone, joined_texts(step));
    expected.backward();
    expect_near(mean_over_replicas(accelerator, loss.item<double>()), expected.item<double>(),
                "the loss");
    expect_near(accelerator.clip_grad_norm(net, 0.1),
                torch::nn::utils::clip_grad_norm_(of_alone.parameters(), 0.1), "the gradient norm");
    opt.step();
    opt.zero_grad();
    other_optimizer.step();
    other_optimizer.zero_grad();
  }
  Expected expected;
  expected.weights = parameters_of(*alone);
  expect_weights(accelerator, net, expected);

  adapter.save_pretrained(folder.path());
  accelerator.wait_for_everyone();
  const auto saved = coupler::SafeTensors::open(folder.path() + "/adapter_model.safetensors");
  for (const auto& item : expected.weights) {
    if (item.key().find("lora_") == std::string::npos) continue;
    EXPECT(torch::allclose(saved.tensor("base_model.model." + item.key()), item.value(), 0, 1e-9),
           item.key() + " is saved with other values");
  }
  if (accelerator.mesh().size("shard") > 1)
    return;  // only weights that a rank keeps are merged here
  const double before = own_loss(accelerator, net);
  adapter.merge();
  expect_near(own_loss(accelerator, net), before, "the loss of the merged model");
}

}  // namespace

std::vector<Check> mesh_adapter_checks() { return {{"lora_trains", lora_trains}}; }
