// Trains a model of mixtures of experts on random tokens for two steps, and prints the peak memory
// of each rank; for tests of estimates. Without memory until prepare, which divides the experts.
//
//   estimate_mixture FEATURES INNER EXPERTS LAYERS
#include <coupler/coupler.h>

#include <cstdio>
#include <cstdlib>

#include "peak_memory.h"

namespace {

constexpr int64_t kTokens = 64, kRows = 8, kSteps = 2;

struct MixtureNetImpl : torch::nn::Module {
  MixtureNetImpl(const coupler::MixtureOfExpertsOptions& options, int64_t layers)
      : in(register_module("in", torch::nn::Linear(options.features, options.features))),
        blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(coupler::MixtureOfExperts(options));
  }

  // Adds what the experts' loads cost to `balance`.
  torch::Tensor forward(const torch::Tensor& x, torch::Tensor& balance) {
    torch::Tensor hidden = in(x);
    for (const auto& block : *blocks) {
      auto* const layer = block->as<coupler::MixtureOfExperts>();
      hidden = hidden + layer->forward(hidden);
      balance = balance + layer->balance_loss();
    }
    return hidden;
  }

  torch::nn::Linear in;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(MixtureNet);

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s FEATURES INNER EXPERTS LAYERS\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return static_cast<int64_t>(std::atoi(argv[i])); };
  MixtureNet model{nullptr};
  {
    const coupler::EmptyWeights empty;
    model = MixtureNet(
        coupler::MixtureOfExpertsOptions{
            .features = number(1), .inner = number(2), .experts = number(3)},
        number(4));
  }
  torch::optim::AdamW adamw(model->parameters(), 1e-3);
  // Small enough to be real in a dry run.
  const torch::Tensor tokens = torch::randn({kRows * kSteps, kTokens});
  auto loader = coupler::data_loader(coupler::TensorDataset(tokens, tokens), {.batch_size = kRows});
  auto [net, opt, batches] = accelerator.prepare(model, adamw, loader);
  int64_t done = 0;
  while (done < kSteps) {
    for (auto& batch : batches) {
      const auto window = accelerator.accumulate(net);
      torch::Tensor balance = torch::zeros({});
      // Each number of a batch becomes a token of random features.
      const torch::Tensor x = batch.data.unsqueeze(-1) * torch::randn({number(1)});
      const torch::Tensor y = net->forward(x, balance);
      accelerator.backward(torch::mse_loss(y, x) + 0.01 * balance);
      opt.step();
      opt.zero_grad();
      if (++done == kSteps) break;
    }
  }
  accelerator.print("memory per rank: ", memory_per_rank(accelerator));
}
