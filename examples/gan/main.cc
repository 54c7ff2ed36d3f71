// Two models and two optimizers in one prepare: a generator learns to draw handwritten digits, a
// discriminator to distinguish them from real ones. The same program runs on one process or many:
//
//   coupler launch -n 2 gan --epochs 30
//   coupler launch -n 2 -o checkpoint.dir=checkpoints -o checkpoint.every=100 gan --epochs 30
#include <coupler/coupler.h>

#include <CLI/CLI.hpp>

#include "digits/digits.h"

namespace {

constexpr int64_t kNoise = 16, kPixels = 64;

struct GeneratorImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& noise) {
    return torch::sigmoid(out(torch::relu(norm(in(noise)))));
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kNoise, 128));
  // Normalizes over the batches of all processes, so the result does not depend on their number.
  coupler::SyncBatchNorm norm = register_module("norm", coupler::SyncBatchNorm(128));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(128, kPixels));
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& pixels) {
    return out(torch::leaky_relu(in(pixels), 0.2)).squeeze(1);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kPixels, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 1));
};
TORCH_MODULE(Discriminator);

torch::Tensor loss_against(const torch::Tensor& logits, double answer) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, answer));
}

// The distance between the mean of many generated digits and the mean of real ones: the mean
// difference per pixel.
double distance(Generator& generator, const torch::Tensor& real) {
  torch::NoGradGuard no_grad;
  generator->eval();
  const auto drawn = generator->forward(torch::randn({512, kNoise}).to(real.device())).mean(0);
  generator->train();
  return (drawn - real.mean(0)).abs().mean().item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);

  CLI::App app{"Trains a generator and a discriminator of handwritten digits."};
  int64_t epochs = 30, batch_size = 32;
  uint64_t seed = 0;
  app.add_option("--epochs", epochs, "passes through the rows")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", batch_size, "samples per step and process")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", seed, "seed of initial values, order and noise")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const Digits digits = load_digits(DIGITS_CSV);
  coupler::set_seed(seed);
  Generator generator;
  Discriminator discriminator;
  const auto rates = torch::optim::AdamOptions(1e-3).betas({0.5, 0.999});
  torch::optim::Adam generator_adam(generator->parameters(), rates);
  torch::optim::Adam discriminator_adam(discriminator->parameters(), rates);
  auto loader =
      coupler::data_loader(coupler::TensorDataset(digits.train_pixels, digits.train_labels),
                           {.batch_size = batch_size, .shuffle = true, .seed = seed});
  auto [draw, judge, draw_opt, judge_opt, batches] =
      accelerator.prepare(generator, discriminator, generator_adam, discriminator_adam, loader);
  const auto real = digits.train_pixels.to(accelerator.device());
  accelerator.print("distance before: ", distance(draw, real));

  coupler::set_seed(seed, {.device_specific = true});  // different noise on every process
  accelerator.resume();                                // also restores the state of the noise
  coupler::ProgressBar progress("training", (epochs - batches.next_epoch()) * batches.size(),
                                accelerator.is_main_process());
  for (int64_t epoch = batches.next_epoch(); epoch < epochs; ++epoch) {
    for (auto& batch : batches) {
      const auto noise = torch::randn({batch.data.size(0), kNoise}).to(accelerator.device());
      {
        auto step = accelerator.accumulate(judge);
        // Zeroed first, because the generator's backward has left gradients here, too.
        judge_opt.zero_grad();
        const auto drawn = draw->forward(noise).detach();
        accelerator.backward(loss_against(judge->forward(batch.data), 0.9) +
                             loss_against(judge->forward(drawn), 0));
        judge_opt.step();
      }
      auto step = accelerator.accumulate(draw);
      draw_opt.zero_grad();
      accelerator.backward(loss_against(judge->forward(draw->forward(noise)), 1));
      draw_opt.step();
      progress.advance();
    }
  }
  progress.finish();
  accelerator.end_training();
  coupler::set_seed(seed);
  accelerator.print("distance after: ", distance(draw, real));
}
