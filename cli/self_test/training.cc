// Compares training by all processes with training by one process on the joined batches.
#include <ATen/Functions.h>
#include <coupler/data_loader.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "section.h"

namespace coupler::self_test {
namespace {

constexpr int64_t kBatch = 8;  // of one process
constexpr double kRate = 0.1;
constexpr int kEpochs = 4;

// Samples of 2 x + 3 with a little noise.
TensorDataset line(int64_t samples) {
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor x = at::rand({samples, 1}, generator) * 2 - 1;
  return {x, 2 * x + 3 + 0.1 * at::randn({samples, 1}, generator)};
}

torch::nn::Linear fresh_model() {
  torch::nn::Linear model(1, 1);
  const at::NoGradGuard no_grad;
  model->weight.fill_(0.5);
  model->bias.fill_(-0.5);
  return model;
}

at::Tensor loss_of(torch::nn::Linear& model, const torch::data::Example<>& batch) {
  return at::mse_loss(model->forward(batch.data), batch.target);
}

// Plain LibTorch in one process: the resulting weight and bias, in one tensor.
at::Tensor expected(TensorDataset data, int64_t samples, int64_t step_samples, int64_t window) {
  torch::nn::Linear model = fresh_model();
  torch::optim::SGD optimizer(model->parameters(), kRate);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t first = 0, step = 1; first < samples; first += step_samples, ++step) {
      std::vector<size_t> rows;
      for (int64_t i = first; i < first + step_samples; ++i) rows.push_back(static_cast<size_t>(i));
      (loss_of(model, data.get_batch(rows)) / static_cast<double>(window)).backward();
      if (step % window != 0) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return at::cat({model->weight.detach().view({1}), model->bias.detach()});
}

}  // namespace

void training(Accelerator& accelerator, Findings& findings) {
  const int64_t step_samples = kBatch * accelerator.world_size();
  const int64_t window = accelerator.gradient_accumulation_steps();
  const int64_t samples = step_samples * window * 8;
  const TensorDataset data = line(samples);
  torch::nn::Linear model = fresh_model();
  torch::optim::SGD optimizer(model->parameters(), kRate);
  auto loader = data_loader(data, {.batch_size = kBatch});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  int64_t skipped = 0;  // steps skipped in fp16 while the grad scaler finds its scale
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : batches) {
      auto step = accelerator.accumulate(net);
      at::Tensor loss;
      {
        auto scope = accelerator.autocast();
        loss = loss_of(net, batch);
      }
      accelerator.backward(loss);
      opt.step();
      skipped += accelerator.optimizer_step_was_skipped() ? 1 : 0;
      opt.zero_grad();
    }
  }
  std::vector<at::Tensor> values;
  accelerator.for_each_tensor(net, [&](const std::string&, const at::Tensor& value) {
    values.push_back(
        value.reshape({-1}).to(at::TensorOptions(at::kFloat).device(at::kCPU)).clone());
  });
  const at::Tensor got = at::cat(values);
  const at::Tensor want = expected(data, samples, step_samples, window);
  findings.expect(same_everywhere(accelerator, got), "the weights differ from rank 0's");
  const double distance = (got - want).abs().max().item<double>();
  // In full precision only rounding differs; lower precision rounds more and may skip steps.
  const double allowed = accelerator.mixed_precision() == "no" ? 1e-4 : skipped == 0 ? 0.1 : 1.0;
  findings.expect(distance <= allowed,
                  "the weights are " + std::to_string(distance) +
                      " away from those of one process on the joined batches; the limit is " +
                      std::to_string(allowed));
}

}  // namespace coupler::self_test
