// Trains a chain of an embedding and three linear layers, all of FEATURES x FEATURES, as a pipeline
// for two steps, and prints the peak memory of each rank; for tests of estimates.
//
//   estimate_pipeline FEATURES ROWS MICRO_BATCHES      ROWS: of a micro-batch
#include <coupler/coupler.h>

#include <cstdio>
#include <cstdlib>

#include "peak_memory.h"

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s FEATURES ROWS MICRO_BATCHES\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return static_cast<int64_t>(std::atoi(argv[i])); };
  const int64_t features = number(1), rows = number(2), micro_batches = number(3);
  const auto linear = [&] {
    return torch::nn::Linear(torch::nn::LinearOptions(features, features).bias(false));
  };
  torch::nn::Sequential model(torch::nn::Embedding(features, features), linear(), linear(),
                              linear());
  torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto pipeline = coupler::prepare_pipeline(accelerator, model, {.micro_batches = micro_batches});
  auto opt = accelerator.prepare(adamw);
  const torch::Tensor tokens = torch::zeros({rows * micro_batches}, torch::kLong);
  for (int step = 0; step < 2; ++step) {
    pipeline.train_step(tokens, tokens, [](const torch::Tensor& output, const torch::Tensor&) {
      return output.pow(2).mean();
    });
    opt.step();
    opt.zero_grad();
  }
  accelerator.print("memory per rank: ", memory_per_rank(accelerator));
}
