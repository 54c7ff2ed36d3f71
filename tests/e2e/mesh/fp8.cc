// Divided layers multiply in fp8, as whole ones do.
#include <coupler/coupler.h>

#include "mesh_checks.h"

using coupler::Accelerator;

namespace {

struct Fp8PairImpl : torch::nn::Module {
  Fp8PairImpl() {
    torch::manual_seed(41);
    up = register_module("up", coupler::ColumnParallelLinear(32, 128));
    down = register_module("down", coupler::RowParallelLinear(128, 32));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return down->forward(torch::tanh(up->forward(x)));
  }
  coupler::ColumnParallelLinear up{nullptr};
  coupler::RowParallelLinear down{nullptr};
};
TORCH_MODULE(Fp8Pair);

double error_against(const torch::Tensor& values, const torch::Tensor& reference) {
  const torch::Tensor wide = reference.to(torch::kDouble);
  return ((values.to(torch::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// fp8 has 3 bits of mantissa: products are off by some percent, in bf16 by a tenth of that. Scales
// are powers of two, so that parts of a layer are rounded as the whole one is.
void fp8_layers(Accelerator& accelerator) {
  Fp8Pair model, alone, exact;
  exact->to(torch::kDouble);
  auto net = accelerator.prepare(model);
  auto generator = at::detail::createCPUGenerator(42);
  const torch::Tensor x = torch::randn({8, 16, 32}, generator, torch::kFloat);
  torch::Tensor ours, whole;
  {
    const auto scope = accelerator.autocast();
    ours = net->forward(x);
    whole = alone->forward(x);
  }
  const double rounding = error_against(ours, exact->forward(x.to(torch::kDouble)));
  EXPECT(rounding > 0.01, "the error is " + std::to_string(rounding) + ": not fp8");
  const double difference = error_against(ours, whole);
  EXPECT(difference < 0.02, "the results differ by " + std::to_string(difference));
  accelerator.backward(ours.to(torch::kFloat).square().mean());
  whole.to(torch::kFloat).square().mean().backward();
  const auto own = net->named_parameters();
  for (const auto& item : alone->named_parameters()) {
    const double error = error_against(accelerator.gradient(own[item.key()]), item.value().grad());
    EXPECT(error < 0.1, "the gradient of " + item.key() + " differs by " + std::to_string(error));
  }
}

}  // namespace

std::vector<Check> mesh_fp8_checks() { return {{"fp8_layers", fp8_layers, /*alone=*/true}}; }
