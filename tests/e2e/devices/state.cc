// Checkpoints of state on a device, and errors of its memory.
#include <coupler/coupler.h>
#include <test_device.h>

#include "device.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;

struct Job {
  explicit Job(Accelerator& accelerator, int seed) {
    torch::manual_seed(seed);
    optimizer = std::make_unique<torch::optim::AdamW>(trainable(net), 1e-2);
    auto [same, prepared] = accelerator.prepare(net, *optimizer);
    opt.emplace(prepared);
  }
  void step(Accelerator& accelerator, int number) {
    const Batch own =
        own_part(joined_batch(number, kRows), accelerator.rank(), accelerator.world_size());
    accelerator.backward(loss_of(net, on_device(accelerator, own)));
    opt->step();
    opt->zero_grad();
  }
  Net net;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::optional<coupler::Optimizer> opt;
};

// Saves, continues, loads, and continues again: the same bits.
void a_checkpoint_brings_the_same_bits(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  Job job(accelerator, 1);
  for (int step = 0; step < 3; ++step) job.step(accelerator, step);
  const std::string saved = accelerator.save_state(folder.path());
  const auto drawn = torch::rand({4}, torch::TensorOptions().device(accelerator.device())).cpu();
  for (int step = 3; step < 6; ++step) job.step(accelerator, step);
  const auto expected = values_of(accelerator, job.net);
  accelerator.load_state(saved);
  const auto again = torch::rand({4}, torch::TensorOptions().device(accelerator.device())).cpu();
  EXPECT(torch::equal(drawn, again), "the device draws different numbers");
  for (int step = 3; step < 6; ++step) job.step(accelerator, step);
  for (const auto& [name, value] : values_of(accelerator, job.net)) {
    EXPECT(torch::equal(value, expected.at(name)), name + " differs");
  }
  accelerator.free_memory();
}

void a_model_is_saved_for_others(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  Job job(accelerator, 2);
  accelerator.save_model(job.net, folder.path());
  accelerator.wait_for_everyone();
  Net other;
  coupler::load_checkpoint_in_model(other, folder.path());
  for (const auto& [name, value] : values_of(accelerator, job.net)) {
    EXPECT(torch::equal(value, other->named_parameters()[name]), name + " differs");
  }
  accelerator.free_memory();
  accelerator.wait_for_everyone();  // the folder is removed after this
}

struct LayersImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x)))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 4));
  torch::nn::Linear third = register_module("third", torch::nn::Linear(4, 3));
};
TORCH_MODULE(Layers);

// On every rank independently, from files that all ranks wrote.
void a_model_lies_on_the_device_the_cpu_and_the_disk(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  torch::manual_seed(4);
  Layers whole;
  const auto input = torch::randn({2, 6});
  const torch::NoGradGuard no_grad;
  const auto expected = whole->forward(input);
  auto net = accelerator.prepare(whole);
  accelerator.save_model(net, folder.path());
  accelerator.wait_for_everyone();
  accelerator.free_memory();
  auto make = [] {
    const coupler::EmptyWeights empty;
    return Layers();
  };
  Layers model = make();
  const auto placed = coupler::load_checkpoint_and_dispatch(
      model, folder.path(),
      {.device_map = coupler::DeviceMap{{"first", static_cast<int>(accelerator.device().index())},
                                        {"second", "cpu"},
                                        {"third", "disk"}}});
  const auto output = model->forward(input);
  EXPECT(output.device() == accelerator.device(), "it ran on " + output.device().str());
  EXPECT((output.cpu() - expected).abs().max().item<float>() < 1e-5F, "the output differs");
  accelerator.wait_for_everyone();
}

// The error has the requested and the free memory, the largest tensor, and a hint.
void a_full_device_is_explained(Accelerator& accelerator) {
  coupler::testing::limit_device_bytes(1 << 20);
  torch::nn::Linear large(2000, 1000);
  const std::string text = error_of([&] { accelerator.prepare(large); });
  coupler::testing::limit_device_bytes(0);
  for (const char* part : {"no room", "7.6 MiB", "'weight'", "free", "a backend that shards"}) {
    EXPECT(text.find(part) != std::string::npos, text);
  }
}

}  // namespace

std::vector<Check> state_checks() {
  return {
      {"a_checkpoint_brings_the_same_bits", a_checkpoint_brings_the_same_bits},
      {"a_model_is_saved_for_others", a_model_is_saved_for_others},
      {"a_model_lies_on_the_device_the_cpu_and_the_disk",
       a_model_lies_on_the_device_the_cpu_and_the_disk},
      {"a_full_device_is_explained", a_full_device_is_explained, /*alone=*/true},
  };
}
