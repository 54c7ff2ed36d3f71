// Training and inference of a GPT in turns, driven by bench/run: bench pipeline --control SOCKET,
// plus configuration arguments. One process runs the unsplit model on whole batches; several run a
// pipeline, one thread per process. Modes: train, infer, and for one process micro-train and
// micro-infer, which compute as many micro-batches as the pipeline; steps: batches.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <coupler/accelerator.h>
#include <coupler/pipeline_parallel.h>
#include <model.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "control.h"
#include "program.h"

namespace coupler::bench::pipeline {
namespace {

constexpr int64_t kBatch = 16, kSequence = 128, kVocabulary = 256, kMicroBatches = 8;

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, kVocabulary}), target.reshape({-1}));
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET");
  at::set_num_threads(1);
  torch::manual_seed(0);
  GPT model(GPTOptions{
      .vocabulary = kVocabulary, .width = 256, .layers = 8, .heads = 4, .sequence = kSequence});
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor text = at::randint(kVocabulary, {kBatch, kSequence + 1}, generator, at::kLong);
  const at::Tensor data = text.slice(1, 0, kSequence).contiguous();
  const at::Tensor target = text.slice(1, 1, kSequence + 1).contiguous();

  double figure = 0;
  std::function<void()> infer, backward;
  int64_t parts = 1;  // of a batch, in one process
  std::vector<coupler::PipelineParallel> pipeline;
  const auto loss_of_part = [&](int64_t part) {
    const int64_t rows = kBatch / parts;
    return loss_of(model->forward(data.narrow(0, part * rows, rows)),
                   target.narrow(0, part * rows, rows)) /
           parts;
  };
  if (accelerator.world_size() == 1) {
    accelerator.prepare(model);
    infer = [&] {
      const at::NoGradGuard no_grad;
      figure = 0;
      for (int64_t part = 0; part < parts; ++part) figure += loss_of_part(part).item<double>();
    };
    backward = [&] {
      figure = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const at::Tensor loss = loss_of_part(part);
        accelerator.backward(loss);
        figure += loss.item<double>();
      }
    };
  } else {
    pipeline.push_back(
        coupler::prepare_pipeline(accelerator, model,
                                  {.micro_batches = kMicroBatches,
                                   .example_inputs = {data.narrow(0, 0, kBatch / kMicroBatches)}}));
    infer = [&] {
      const at::Tensor logits = pipeline[0].forward(data);
      figure = logits.defined() ? loss_of(logits, target).item<double>() : 0;
    };
    backward = [&] { figure = pipeline[0].train_step(data, target, loss_of); };
  }
  auto opt = accelerator.prepare(optimizer);
  coupler::bench::Control control(values[0]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train =
                     [&](const std::string& mode, int64_t steps) {
                       parts = mode.starts_with("micro-") ? kMicroBatches : 1;
                       for (int64_t i = 0; i < steps; ++i) {
                         if (mode.ends_with("infer")) {
                           infer();
                           continue;
                         }
                         backward();
                         opt.step();
                         opt.zero_grad();
                       }
                       accelerator.wait_for_everyone();
                     },
                 .loss = [&] { return figure; }});
  return 0;
}

const Registration kRegistration("pipeline", program);

}  // namespace coupler::bench::pipeline
