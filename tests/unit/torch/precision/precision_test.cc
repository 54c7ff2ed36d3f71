// Refused combinations of device and precision, and the log at startup.
#include "precision/precision.h"

#include <coupler/accelerator.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "precision/fp8_linear.h"

namespace coupler::precision {
namespace {

std::string precision_refusal(const std::string& precision, c10::DeviceType device,
                              bool emulate = false) {
  config::TrainingConfig config;
  config.mixed_precision = precision;
  config.fp8_emulate = emulate;
  try {
    require_precision(config, device);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
  return "";
}

AcceleratorOptions with(const std::string& precision) {
  AcceleratorOptions options;
  options.mixed_precision = precision;
  options.fp8_emulate = true;
  return options;
}

// Prepares a layer with an optimizer and a schedule, takes a step, and returns the log.
std::string log_of_a_step(const std::string& precision, bool in_scope) {
  ::testing::internal::CaptureStderr();
  Accelerator accelerator(with(precision));
  torch::nn::Linear model(2, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt, scheduler] =
      accelerator.prepare(model, optimizer, cosine_schedule(optimizer, {2, 8}));
  at::Tensor loss;
  {
    const AutocastScope scope = accelerator.autocast(in_scope);
    loss = net->forward(at::ones({3, 2})).sum();
  }
  accelerator.backward(loss);
  opt.step();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Precision, Cpu_HasBf16AndFp16) {
  for (const char* name : {"no", "bf16", "fp16"}) {
    EXPECT_EQ(precision_refusal(name, c10::DeviceType::CPU), "") << name;
  }
}

TEST(Precision, Fp8OnACpuWithoutIt_SaysWhatItLacksAndWhatToUse) {
  EXPECT_EQ(precision_refusal("fp8", c10::DeviceType::CPU, /*emulate=*/true), "");
  if (why_no_fp8_units(c10::DeviceType::CPU).empty()) GTEST_SKIP() << "this CPU has fp8 units";
  EXPECT_EQ(precision_refusal("fp8", c10::DeviceType::CPU),
            "training.mixed_precision is fp8, which the device cpu does not support: this CPU "
            "has no AMX-FP16, so LibTorch's scaled matmul converts to wider types first and is "
            "slower than "
            "fp32\n  hint: use training.mixed_precision = \"bf16\", or, to try a program, "
            "training.fp8_emulate = true");
  EXPECT_THROW(Accelerator accelerator(AcceleratorOptions{.mixed_precision = "fp8"}), Error);
}

// A device that our LibTorch does not support stands for one without the dtype.
TEST(Precision, DeviceWithoutFp16_IsNamedWithWhatToUse) {
  const std::string fp16 = precision_refusal("fp16", c10::DeviceType::HPU);
  EXPECT_EQ(fp16.find("training.mixed_precision is fp16, which the device hpu does not support: "),
            0U)
      << fp16;
  EXPECT_NE(fp16.find("hint: use training.mixed_precision = \"bf16\""), std::string::npos) << fp16;
  const std::string bf16 = precision_refusal("bf16", c10::DeviceType::HPU);
  EXPECT_NE(bf16.find("hint: use training.mixed_precision = \"no\""), std::string::npos) << bf16;
  const std::string fp8 = precision_refusal("fp8", c10::DeviceType::HPU, /*emulate=*/true);
  EXPECT_NE(fp8.find("hint: use training.mixed_precision = \"bf16\""), std::string::npos) << fp8;
}

// As in addmm, which LibTorch's layer uses for two dimensions only: the bias is rounded first.
TEST(Autocast, LayersBias_IsCastForInputsOfThreeDimensions) {
  torch::manual_seed(1);
  torch::nn::Linear layer(16, 8);
  const at::Tensor input = at::randn({2, 3, 16});
  const AutocastScope scope(AutocastSettings{c10::DeviceType::CPU, at::kBFloat16});
  const at::Tensor output = layer->forward(input);
  const at::Tensor product = at::matmul(input, layer->weight.t());
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(output, product + layer->bias.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(output, (product + layer->bias).to(at::kBFloat16)));
  output.to(at::kFloat).sum().backward();
  EXPECT_TRUE(at::equal(layer->bias.grad(), at::full({8}, 6.0F)));
}

TEST(Autocast, OtherSums_KeepTheirTypes) {
  const AutocastScope scope(AutocastSettings{c10::DeviceType::CPU, at::kBFloat16});
  const float fine = 1.0F + 1.0F / 512;  // bf16 rounds it to 1
  at::Tensor sum = at::full({2, 2, 3}, -1, at::kBFloat16);
  sum += at::full({3}, fine);  // no parameter
  EXPECT_EQ(sum.to(at::kFloat).max().item<float>(), 1.0F / 512);
  at::Tensor wide = at::full({2, 2, 3}, -1.0F);
  wide += at::full({3}, fine).requires_grad_();
  EXPECT_EQ(wide.scalar_type(), at::kFloat);
  EXPECT_EQ(wide.max().item<float>(), fine - 1);
}

c10::ScalarType product_type() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

// A dataset that notes the type in which it multiplies.
struct MultiplyingDataset : torch::data::datasets::Dataset<MultiplyingDataset> {
  torch::data::Example<> get(size_t) override {
    *seen = product_type();
    return {at::ones({2}), at::ones({1})};
  }
  std::optional<size_t> size() const override { return 4; }
  std::shared_ptr<c10::ScalarType> seen = std::make_shared<c10::ScalarType>(at::kByte);
};

// Loops over prepared loaders are scopes while their bodies run.
class LoopScope : public ::testing::Test {
 protected:
  auto loader() {
    auto made = data_loader(MultiplyingDataset(), {.batch_size = 2});
    accelerator_.prepare(made);
    return made;
  }
  ~LoopScope() override { EXPECT_EQ(product_type(), at::kFloat) << "autocast after the test"; }

  Accelerator accelerator_{with("bf16")};
};

TEST_F(LoopScope, Body_IsAutocastButNotTheDataset) {
  auto batches = loader();
  int bodies = 0;
  for ([[maybe_unused]] auto& batch : batches) {
    EXPECT_EQ(product_type(), at::kBFloat16);
    ++bodies;
  }
  EXPECT_EQ(bodies, 2);
  EXPECT_EQ(*batches.dataset().seen, at::kFloat);
  EXPECT_EQ(product_type(), at::kFloat);
}

TEST_F(LoopScope, BreakAndExceptions_EndIt) {
  auto batches = loader();
  for ([[maybe_unused]] auto& batch : batches) break;
  EXPECT_EQ(product_type(), at::kFloat);
  try {
    for ([[maybe_unused]] auto& batch : batches) throw std::runtime_error("the user's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_type(), at::kFloat);
}

TEST_F(LoopScope, ProgramsOwnScopes_Count) {
  auto outer = loader(), inner = loader();
  for ([[maybe_unused]] auto& batch : outer) {
    const auto full = accelerator_.autocast(false);
    EXPECT_EQ(product_type(), at::kFloat);
    for ([[maybe_unused]] auto& other : inner) EXPECT_EQ(product_type(), at::kFloat);
    EXPECT_EQ(product_type(), at::kFloat);
  }
  const auto full = accelerator_.autocast(false);
  for ([[maybe_unused]] auto& batch : outer) EXPECT_EQ(product_type(), at::kFloat);
}

TEST_F(LoopScope, NestedAndAlternatingLoops_ShareIt) {
  auto first = loader(), second = loader();
  for ([[maybe_unused]] auto& batch : first) {
    for ([[maybe_unused]] auto& other : second) {
      EXPECT_EQ(product_type(), at::kBFloat16);
      EXPECT_EQ(*second.dataset().seen, at::kFloat) << "the inner dataset is read in autocast";
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  auto one = first.begin();
  auto two = second.begin();
  ++one;
  EXPECT_EQ(product_type(), at::kBFloat16);
  ++one;
  EXPECT_EQ(one, first.end());
  EXPECT_EQ(product_type(), at::kBFloat16) << "the second loop has not ended";
  ++two;
  ++two;
  EXPECT_EQ(two, second.end());
}

// The loop's scope ends before one that began in its body.
TEST_F(LoopScope, ScopeThatOutlivesTheBody_StaysAndEnds) {
  auto batches = loader();
  for (auto batch = batches.begin(); batch != batches.end();) {
    const auto full = accelerator_.autocast(false);
    ++batch;
    EXPECT_EQ(product_type(), at::kFloat);
  }
  EXPECT_EQ(product_type(), at::kFloat);
  auto batch = batches.begin();
  {
    const auto reduced = accelerator_.autocast();
    batch = batches.end();
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
}

TEST_F(LoopScope, ExplicitOrAnotherPrecision_OpensNone) {
  for (const AcceleratorOptions& options :
       {AcceleratorOptions{.mixed_precision = "bf16", .autocast = "explicit"}, with("no")}) {
    Accelerator accelerator(options);
    auto batches = data_loader(MultiplyingDataset(), {.batch_size = 2});
    accelerator.prepare(batches);
    for ([[maybe_unused]] auto& batch : batches) EXPECT_EQ(product_type(), at::kFloat);
  }
}

TEST_F(LoopScope, LoaderThatOutlivesItsAccelerator_OpensNone) {
  auto batches = data_loader(MultiplyingDataset(), {.batch_size = 2});
  { Accelerator(with("bf16")).prepare(batches); }
  for ([[maybe_unused]] auto& batch : batches) EXPECT_EQ(product_type(), at::kFloat);
}

// 17/16 needs four bits of mantissa; fp8 has three.
at::Tensor product_of_16() {
  const at::Tensor all = at::full({16, 16}, 17.0 / 16);
  return at::matmul(all, all.t());
}

// An optimizer of the program's own, whose products are not rounded.
TEST(Autocast, OptimizersProductsInALoop_AreInFullPrecision) {
  class Multiplying : public torch::optim::SGD {
   public:
    using SGD::SGD;
    at::Tensor step(LossClosure closure = nullptr) override {
      seen = product_of_16();
      return SGD::step(std::move(closure));
    }
    at::Tensor seen;
  };
  for (const char* precision : {"bf16", "fp8"}) {
    Accelerator accelerator(with(precision));
    torch::nn::Linear model(2, 1);
    Multiplying optimizer(model->parameters(), 0.1);
    auto loader = data_loader(MultiplyingDataset(), {.batch_size = 4});
    auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
    for (auto& batch : batches) {
      EXPECT_NE(product_of_16().scalar_type(), at::kFloat) << precision;
      accelerator.backward(net->forward(batch.data).to(at::kFloat).sum());
      opt.step();
      opt.zero_grad();
    }
    EXPECT_EQ(optimizer.seen.scalar_type(), at::kFloat) << precision;
    EXPECT_EQ(optimizer.seen[0][0].item<float>(), 17.0F / 16 * 17 / 16 * 16) << precision;
  }
}

TEST(PrecisionLog, EveryPart_IsNamedAtTheStart) {
  const std::string bf16 = log_of_a_step("bf16", true);
  EXPECT_NE(bf16.find("mixed precision bf16: 'torch::nn::LinearImpl' is stored in Float, computed "
                      "in Float (inside autocast BFloat16), its gradients are reduced in Float, "
                      "the optimizer runs in Float"),
            std::string::npos)
      << bf16;
  EXPECT_NE(log_of_a_step("fp8", true).find("(inside autocast BFloat16, linear layers fp8)"),
            std::string::npos);
  EXPECT_NE(log_of_a_step("no", true).find("is stored in Float, computed in Float, its"),
            std::string::npos);
}

TEST(PrecisionLog, Scheduler_PrintsItsUnitAndEnd) {
  const std::string text = log_of_a_step("no", true);
  EXPECT_NE(text.find("scheduler cosine: counts optimizer steps, warm-up until 2, end at 8\n"),
            std::string::npos)
      << text;
}

TEST(PrecisionLog, MixedPrecisionWithoutAScope_IsWarnedAbout) {
  constexpr const char* kWarning =
      "there was no loop over a prepared data loader and no accelerator.autocast() before this "
      "backward";
  EXPECT_NE(log_of_a_step("bf16", false).find(kWarning), std::string::npos);
  EXPECT_EQ(log_of_a_step("bf16", true).find(kWarning), std::string::npos);
  EXPECT_EQ(log_of_a_step("no", false).find(kWarning), std::string::npos);
}

}  // namespace
}  // namespace coupler::precision
