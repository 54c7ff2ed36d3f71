// Forward and backward of a GPT over a long sequence, which a context group may divide, driven by
// bench/run: bench long_sequence --control SOCKET, plus configuration arguments. One thread per
// process. Modes: short, which makes the gradients and answers the loss of a short sequence; long,
// whose number n says that one n-th of the sequence is enough, and whose answer in place of a loss
// is the MiB by which the process's memory grew at the peak.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <coupler/accelerator.h>
#include <model.h>
#include <torch/utils.h>

#include <string>

#include "control.h"
#include "extra_memory.h"
#include "program.h"

namespace coupler::bench::long_sequence {
namespace {

// Few parameters, so that almost all memory is activations.
constexpr GPTOptions kOptions{
    .vocabulary = 256, .width = 128, .layers = 4, .heads = 4, .sequence = 8192};
constexpr int64_t kTexts = 2, kShortSequence = 64;

// Returns the loss, the mean over all tokens. Gradients stay, so that they are not counted again.
double run(Accelerator& accelerator, GPT& net, int64_t sequence) {
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor text =
      at::randint(kOptions.vocabulary, {kTexts, sequence + 1}, generator, at::kLong);
  const at::Tensor data = text.slice(1, 0, sequence).contiguous();
  const at::Tensor target = text.slice(1, 1, sequence + 1).contiguous();
  at::Tensor loss;
  {
    const auto part = accelerator.context_parallel({{data, 1}, {target, 1}});
    loss = at::cross_entropy_loss(net->forward(data).flatten(0, 1), target.flatten());
    accelerator.backward(loss);
  }
  return accelerator.reduce(loss.detach(), ReduceOp::kMean).item<double>();
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET");
  at::set_num_threads(1);
  torch::manual_seed(0);
  GPT model(kOptions);
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  GPT net = accelerator.prepare(model);
  double figure = 0;
  Control control(values[0]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train =
                     [&](const std::string& mode, int64_t parts) {
                       if (mode == "short") {
                         figure = run(accelerator, net, kShortSequence);
                         return;
                       }
                       ExtraMemory extra(/*anonymous=*/false);
                       run(accelerator, net, kOptions.sequence / parts);
                       figure = extra.mib();
                     },
                 .loss = [&] { return figure; }});
  return 0;
}

const Registration kRegistration("long_sequence", program);

}  // namespace coupler::bench::long_sequence
