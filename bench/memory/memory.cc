// Trains an MLP of 201 million parameters for a few steps and writes its memory use to FOLDER/RANK:
// "BASE PEAK" (KiB), before the model and at the peak. bench memory --width WIDTH --report FOLDER,
// plus configuration arguments; with the width LargeMLPImpl::kWidth the model has that size. The
// counterpart is bench/python/peak_memory.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <torch/optim/adamw.h>

#include <fstream>
#include <string>

#include "large_mlp.h"
#include "program.h"

namespace coupler::bench::memory {
namespace {

constexpr int64_t kBatch = 4;
constexpr int kSteps = 4;

long high_water() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stol(line.substr(6));
  }
  return 0;
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--width WIDTH --report FOLDER");
  const int64_t width = std::stoll(values[0]);
  accelerator.wait_for_everyone();
  const long base = high_water();
  torch::manual_seed(0);
  LargeMLP model(width);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  // Ranks that divide layers get the same samples.
  const int samples = accelerator.mesh().rank("data+shard");
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(samples));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor data = at::randn({kBatch, width}, generator);
    const at::Tensor target = at::randint(width, {kBatch}, generator, at::kLong);
    accelerator.backward(at::cross_entropy_loss(net->forward(data), target));
    opt.step();
    opt.zero_grad();
  }
  std::ofstream(values[1] + "/" + std::to_string(accelerator.rank()))
      << base << " " << high_water() << "\n";
  accelerator.wait_for_everyone();
  return 0;
}

const Registration kRegistration("memory", program);

}  // namespace coupler::bench::memory
