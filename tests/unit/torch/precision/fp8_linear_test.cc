// fp8 layers against a reference that scales and rounds literally and multiplies in double.
#include "precision/fp8_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/linear.h>

#include <cmath>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "tensors/autocast_state.h"

namespace coupler::precision {
namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kE5m2 = at::kFloat8_e5m2;

class Fp8Layers {
 public:
  explicit Fp8Layers(at::ScalarType gradients) : before_(tensors::set_fp8_linear(gradients)) {}
  ~Fp8Layers() { tensors::set_fp8_linear(before_); }
  Fp8Layers(const Fp8Layers&) = delete;
  Fp8Layers& operator=(const Fp8Layers&) = delete;

 private:
  std::optional<at::ScalarType> before_;
};

// A tensor after scaling, rounding and scaling back.
at::Tensor rounded(const at::Tensor& tensor, at::ScalarType type) {
  const at::Tensor wide = tensor.detach().to(at::kBFloat16).to(at::kDouble);
  const double peak = wide.abs().max().item<double>();
  if (peak == 0) return wide;
  int exponent = 0;
  const double ratio = (type == kE5m2 ? 57344 : 448) / peak;
  std::frexp(ratio, &exponent);  // ratio in [2^(exponent - 1), 2^exponent)
  const double factor = std::ldexp(1.0, exponent - 1);
  return (wide * factor).to(at::kFloat).to(type).to(at::kDouble) / factor;
}

void expect_close(const at::Tensor& got, const at::Tensor& want, double bound, const char* what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = want.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), bound * scale) << what;
}

struct Layer {
  at::Tensor input, weight, bias;
};

Layer layer(at::IntArrayRef leading, int64_t in, int64_t out, at::ScalarType type = at::kFloat,
            bool with_bias = true) {
  std::vector<int64_t> sizes(leading.begin(), leading.end());
  sizes.push_back(in);
  Layer result{at::randn(sizes, type), at::randn({out, in}, type), {}};
  if (with_bias) result.bias = at::randn({out}, type);
  for (at::Tensor* tensor : {&result.input, &result.weight, &result.bias}) {
    if (tensor->defined()) tensor->requires_grad_(true);
  }
  return result;
}

std::optional<at::Tensor> maybe(const at::Tensor& bias) {
  return bias.defined() ? std::optional(bias) : std::nullopt;
}

TEST(Fp8Linear, RandomLayers_AreTheReferenceForwardAndBackward) {
  at::manual_seed(3);
  std::mt19937 random(3);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same cases every time
  const auto pick = [&](int low, int high) {
    return static_cast<int64_t>(std::uniform_int_distribution<int>(low, high)(random));
  };
  for (int round = 0; round < 200; ++round) {
    const at::ScalarType gradients = pick(0, 1) == 0 ? kE4m3 : kE5m2;
    const at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf};
    const at::ScalarType type = types[pick(0, 2)];
    std::vector<int64_t> leading;
    for (int64_t i = pick(0, 2); i > 0; --i) leading.push_back(pick(1, 20));
    const int64_t in = 16 * pick(1, 4), out = 16 * pick(1, 4);
    const Layer made = layer(leading, in, out, type, pick(0, 3) != 0);
    // Scales matter most for values far from 1.
    const at::Tensor input = (made.input * std::ldexp(1.0, static_cast<int>(pick(-9, 9)))).detach();
    input.requires_grad_(true);
    at::Tensor product;
    {
      const Fp8Layers scope(gradients);
      product = pick(0, 1) == 0 ? at::linear(input, made.weight, maybe(made.bias))
                                : torch::nn::functional::linear(input, made.weight, made.bias);
    }
    ASSERT_EQ(product.scalar_type(), at::kBFloat16);
    const at::Tensor x = rounded(input, kE4m3), w = rounded(made.weight, kE4m3);
    at::Tensor want = at::matmul(x, w.t());
    if (made.bias.defined()) want = want + made.bias.detach().to(at::kDouble);
    expect_close(product, want, 0x1p-7, "product");

    const at::Tensor gradient = at::randn_like(product);
    product.backward(gradient);
    const at::Tensor g = rounded(gradient, gradients).reshape({-1, out});
    expect_close(input.grad(), at::matmul(g, w).reshape(input.sizes()), 0x1p-7, "input");
    ASSERT_EQ(input.grad().scalar_type(), type);
    const at::Tensor flat = x.reshape({-1, in});
    const bool aligned = flat.size(0) % 16 == 0;
    const at::Tensor used = aligned ? g : gradient.to(at::kDouble).reshape({-1, out});
    expect_close(made.weight.grad(), at::matmul(used.t(), flat), 0x1p-7, "weight");
    ASSERT_EQ(made.weight.grad().scalar_type(), type);
    if (made.bias.defined()) {
      expect_close(made.bias.grad(), gradient.to(at::kDouble).reshape({-1, out}).sum(0), 0x1p-6,
                   "bias");
    }
  }
}

TEST(Fp8Linear, Layouts_DoNotMatter) {
  const Fp8Layers scope(kE5m2);
  const at::Tensor x = at::randn({64, 32}), w = at::randn({48, 32});
  const at::Tensor want = at::linear(x, w);
  const at::Tensor turned_x = x.t().contiguous().t().requires_grad_(true);
  const at::Tensor turned_w = w.t().contiguous().t().requires_grad_(true);
  const at::Tensor got = at::linear(turned_x, turned_w);
  EXPECT_TRUE(at::equal(want, got));
  got.t().backward(at::ones({48, 64}, at::kBFloat16));
  EXPECT_TRUE(at::equal(turned_x.grad()[0], turned_x.grad()[63]));
  const at::Tensor expanded = at::linear(x.narrow(0, 0, 1).expand({64, 32}), w);
  EXPECT_TRUE(at::equal(expanded[0], expanded[63]));
}

TEST(Fp8Linear, OtherSizesAndTypes_AreAsWithout) {
  for (const auto& [in, out, type] :
       {std::tuple{24, 16, at::kFloat}, {16, 10, at::kFloat}, {16, 16, at::kDouble}}) {
    const Layer made = layer({16}, in, out, type);
    const at::Tensor want = at::linear(made.input, made.weight, made.bias);
    const Fp8Layers scope(kE5m2);
    EXPECT_TRUE(at::equal(at::linear(made.input, made.weight, made.bias), want));
  }
  const Fp8Layers scope(kE5m2);
  EXPECT_EQ(at::linear(at::ones({0, 16}), at::ones({32, 16})).sizes(), at::IntArrayRef({0, 32}));
  EXPECT_THROW(at::linear(at::ones({4, 32}), at::ones({32, 16})), c10::Error);
}

TEST(Fp8Linear, ProductsThatAreNoLayers_AreAsWithout) {
  const at::Tensor a = at::randn({16, 32}), b = at::randn({32, 16}), row = at::randn({16});
  const at::Tensor many = at::randn({3, 16, 32});
  const auto all = [&] {
    return std::vector<at::Tensor>{at::matmul(a, b),
                                   at::matmul(many, many.transpose(1, 2)),
                                   at::addmm(row, a, b),
                                   at::addmm(row, a, a.t(), 2, 1),
                                   at::addmm(at::randn({16, 16}).zero_(), a, a.t()),
                                   at::matmul(a, a[0])};
  };
  const auto want = all();
  const Fp8Layers scope(kE5m2);
  const auto got = all();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

TEST(Fp8Linear, ZerosInfinitiesAndNans_AreKept) {
  const Fp8Layers scope(kE5m2);
  EXPECT_EQ(at::linear(at::zeros({16, 16}), at::ones({16, 16})).abs().max().item<float>(), 0);
  at::Tensor x = at::ones({16, 16});
  x[3][3] = INFINITY;
  EXPECT_FALSE(at::linear(x, at::ones({16, 16}))[3].isfinite().any().item<bool>());
  x[3][3] = NAN;
  EXPECT_TRUE(at::linear(x, at::ones({16, 16}))[3].isnan().all().item<bool>());
}

TEST(Fp8Linear, FrozenWeightsAndInputs_GetNoGradient) {
  const Fp8Layers scope(kE5m2);
  Layer made = layer({16}, 16, 16);
  made.weight.requires_grad_(false);
  at::linear(made.input, made.weight, made.bias).sum().backward();
  EXPECT_FALSE(made.weight.grad().defined());
  EXPECT_TRUE(made.input.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(at::linear(made.input, made.weight).requires_grad());
}

TEST(Fp8Linear, GradientOfTheGradient_IsRefused) {
  const Fp8Layers scope(kE5m2);
  const Layer made = layer({16}, 16, 16);
  const at::Tensor product = at::linear(made.input, made.weight).to(at::kFloat);
  const auto first = torch::autograd::grad({product.square().sum()}, {made.input}, {}, true, true);
  EXPECT_THROW(first[0].square().sum().backward(), c10::Error);
}

TEST(Fp8Linear, Scope_EndsWithItsBlockAndHoldsForItsThreadOnly) {
  const Layer made = layer({16}, 16, 16);
  const at::Tensor want = at::linear(made.input, made.weight, made.bias);
  {
    const Fp8Layers scope(kE5m2);
    at::Tensor other;
    std::thread([&] { other = at::linear(made.input, made.weight, made.bias); }).join();
    EXPECT_TRUE(at::equal(other, want));
    EXPECT_FALSE(at::equal(at::linear(made.input, made.weight, made.bias), want));
  }
  EXPECT_TRUE(at::equal(at::linear(made.input, made.weight, made.bias), want));
}

}  // namespace
}  // namespace coupler::precision
