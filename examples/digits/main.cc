// Trains a small network on handwritten digits. The same program runs on one process or many, over
// any backend named in the configuration:
//
//   digits --epochs 20
//   coupler launch -n 2 -o backend.use=gloo_cpu digits --epochs 20
//   coupler launch -n 2 -o checkpoint.dir=checkpoints -o checkpoint.every=100 digits --epochs 20
#include <coupler/coupler.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "digits.h"
#include "peak_memory.h"

struct NetImpl : torch::nn::Module {
  NetImpl()
      : fc1(register_module("fc1", torch::nn::Linear(64, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}
  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);

// Replaces the initial values with those of a file with fc1.weight, fc1.bias, fc2.weight, fc2.bias.
void load_parameters(Net& model, const std::string& path) {
  torch::NoGradGuard no_grad;
  const auto file = coupler::SafeTensors::open(path);
  for (auto& parameter : model->named_parameters()) {
    const auto value = file.tensor(parameter.key());
    if (value.sizes() != parameter.value().sizes()) {
      throw std::runtime_error(path + ": '" + parameter.key() +
                               "' has a different shape than in the model");
    }
    parameter.value().copy_(value);
  }
}

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);

  CLI::App app{"Trains a small network on handwritten digits."};
  int64_t epochs = 20, batch_size = 32;
  uint64_t seed = 0;
  bool no_shuffle = false;
  std::string init, data = DIGITS_CSV;
  app.add_option("--epochs", epochs, "passes through the training rows")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", batch_size, "samples per step, over all processes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", seed, "seed of initial values and order")->capture_default_str();
  app.add_flag("--no-shuffle", no_shuffle, "keep the order of the file");
  app.add_option("--init", init, "a .safetensors file with initial values");
  app.add_option("--data", data, "path of digits.csv")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const Digits digits = load_digits(data);
  torch::manual_seed(seed);
  Net model;
  if (!init.empty()) load_parameters(model, init);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  // split_batches: the processes share batch_size, so that step k sees the same samples for any
  // number of processes.
  auto loader = coupler::data_loader(
      coupler::TensorDataset(digits.train_pixels, digits.train_labels), {.batch_size = batch_size,
                                                                         .shuffle = !no_shuffle,
                                                                         .drop_last = true,
                                                                         .seed = seed,
                                                                         .split_batches = true});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);

  accelerator.resume();  // from the newest checkpoint of -o checkpoint.dir, if there is one
  coupler::ProgressBar progress("training", (epochs - batches.next_epoch()) * batches.size(),
                                accelerator.is_main_process());
  for (int64_t epoch = batches.next_epoch(); epoch < epochs; ++epoch) {
    double loss_sum = 0;
    for (auto& batch : batches) {
      auto step = accelerator.accumulate(net);
      auto loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      loss_sum += loss.item<double>();
      progress.advance();
    }
    char text[64];
    std::snprintf(text, sizeof text, "epoch %ld loss %.4f", static_cast<long>(epoch + 1),
                  loss_sum / static_cast<double>(batches.size()));
    progress.set_suffix(text);
  }
  progress.finish();
  accelerator.end_training();

  torch::NoGradGuard no_grad;
  const auto there = [&](const torch::Tensor& rows) { return rows.to(accelerator.device()); };
  const auto train_loss = torch::cross_entropy_loss(net->forward(there(digits.train_pixels)),
                                                    there(digits.train_labels));
  const auto right =
      net->forward(there(digits.test_pixels)).argmax(1).eq(there(digits.test_labels));
  accelerator.print("memory per rank: ", memory_per_rank(accelerator));
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", train_loss.item<double>());
  accelerator.print("final loss: ", text);
  std::snprintf(text, sizeof text, "%.4f", right.to(torch::kDouble).mean().item<double>());
  accelerator.print("test accuracy: ", text);
}
