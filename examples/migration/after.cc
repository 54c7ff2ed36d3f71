// Trains a network on handwritten digits: before.cc in plain LibTorch, after.cc with Coupler on one
// process or many, resuming.cc also resumes from checkpoints. Six lines differ between the first
// two and three between the last two; docs/from-accelerate.md explains them.
#include <coupler/coupler.h>

#include <iostream>

#include "digits_dataset.h"

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  torch::Device device = accelerator.device();

  const auto train = [&](auto&& model, auto&& optimizer, auto&& scheduler, auto&& dataloader) {
    for (int epoch = 0; epoch < 12; ++epoch) {
      for (auto& batch : dataloader) {
        optimizer.zero_grad();
        auto inputs = batch.data.to(device);
        auto targets = batch.target.to(device);
        auto outputs = model->forward(inputs);
        auto loss = torch::cross_entropy_loss(outputs, targets);
        accelerator.backward(loss);
        optimizer.step();
        scheduler.step();
      }
    }
  };

  torch::manual_seed(0);
  const Digits digits = load_digits(argc > 1 ? argv[1] : DIGITS_CSV);
  auto dataset = DigitsDataset(digits).map(torch::data::transforms::Stack<>());
  Net model;
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  torch::optim::StepLR scheduler(optimizer, 400, 0.5);
  auto dataloader = coupler::data_loader(dataset, {.batch_size = 32, .shuffle = true});
  std::apply(train, accelerator.prepare(model, optimizer, scheduler, dataloader));

  torch::NoGradGuard no_grad;
  const auto predictions = model->forward(digits.test_pixels.to(device)).argmax(1).cpu();
  const auto right = predictions.eq(digits.test_labels).sum().item<double>();
  std::cout << "test accuracy: " << right / static_cast<double>(predictions.size(0)) << "\n";
}
