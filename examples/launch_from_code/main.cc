// Trains on two processes from within a program, as from a notebook, without running a launcher.
//
//   launch_from_code [PROCESSES [EPOCHS]]
#include <coupler/coupler.h>
#include <coupler/launch.h>

#include <cstdio>
#include <cstdlib>

#include "digits.h"

// Runs on every rank; launch returns rank 0's result.
double train(int epochs, uint64_t seed) {
  coupler::Accelerator accelerator;
  coupler::set_seed(seed);
  const Digits digits = load_digits(DIGITS_CSV);
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                              torch::nn::Linear(128, 10));
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  auto [net, opt, batches] = accelerator.prepare(
      model, optimizer,
      coupler::data_loader(coupler::TensorDataset(digits.train_pixels, digits.train_labels),
                           {.batch_size = 16, .shuffle = true, .seed = seed}));
  // Each rank evaluates its share of the test rows; gather_for_metrics collects the results.
  auto tests = accelerator.prepare(coupler::data_loader(
      coupler::TensorDataset(digits.test_pixels, digits.test_labels), {.batch_size = 32}));
  double accuracy = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& batch : batches) {
      accelerator.backward(torch::cross_entropy_loss(net->forward(batch.data), batch.target));
      opt.step();
      opt.zero_grad();
    }
    torch::NoGradGuard no_grad;
    int64_t right = 0, all = 0;
    for (auto& batch : tests) {
      const auto hits = accelerator.gather_for_metrics(
          net->forward(batch.data).argmax(1).eq(batch.target).to(torch::kLong));
      right += hits.sum().item<int64_t>();
      all += hits.numel();
    }
    accuracy = static_cast<double>(right) / static_cast<double>(all);
    char text[64];
    std::snprintf(text, sizeof text, "epoch %d: accuracy %.2f %%", epoch, 100 * accuracy);
    accelerator.print(text);
  }
  return accuracy;
}
const coupler::Launchable launchable_train("train", train);

int main(int argc, char** argv) {
  coupler::enter_launched();
  const int processes = argc > 1 ? std::atoi(argv[1]) : 2;
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 5;
  const double accuracy = coupler::launch(processes, train, epochs, 42);
  std::printf("accuracy: %.4f\n", accuracy);
}
