// Trains a GPT of 24 layers in turns, driven by bench/run, with or without activation
// checkpointing: bench activations --control SOCKET, plus configuration arguments. Modes: steps;
// retained, which reports as its loss the MiB of heap that a forward retains for backward.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <coupler/accelerator.h>
#include <malloc.h>
#include <model.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <string>

#include "control.h"
#include "program.h"

namespace coupler::bench::activations {
namespace {

constexpr int64_t kBatch = 4, kSequence = 128, kVocabulary = 256;

double heap_mib() {
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<double>(heap.uordblks + heap.hblkhd) / (1 << 20);
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET");
  torch::manual_seed(0);
  GPT model(GPTOptions{
      .vocabulary = kVocabulary, .width = 256, .layers = 24, .heads = 4, .sequence = kSequence});
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor text = at::randint(kVocabulary, {kBatch, kSequence + 1}, generator, at::kLong);
  const at::Tensor data = text.slice(1, 0, kSequence).contiguous();
  const at::Tensor target = text.slice(1, 1, kSequence + 1).reshape({-1});

  double figure = 0;
  const auto train = [&, &net = net, &opt = opt](const std::string& mode, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const double before = heap_mib();
      auto loss = at::cross_entropy_loss(net->forward(data).reshape({-1, kVocabulary}), target);
      figure = mode == "retained" ? heap_mib() - before : loss.item<double>();
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  };
  coupler::bench::Control control(values[0]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train = train,
                 .loss = [&] { return figure; }});
  return 0;
}

const Registration kRegistration("activations", program);

}  // namespace coupler::bench::activations
