// Quantized models: in memory, on a disk, and unsupported uses.
#include <coupler/autocast.h>
#include <coupler/quantize.h>
#include <utime.h>

#include "residency/intercept.h"
#include "small_gpt.h"

namespace coupler::big_model {
namespace {

using coupler::testing::empty_gpt;
using coupler::testing::file_at;
using coupler::testing::Folder;
using coupler::testing::hinted_message_of;
using coupler::testing::output_of;
using coupler::testing::real_gpt;
using coupler::testing::SmallGpt;
using coupler::testing::tensors_of;
using coupler::testing::write_safetensors;

const at::Tensor& up_weight(SmallGpt& model, size_t block = 0) {
  return model->blocks[block]->as<coupler::testing::BlockImpl>()->up->weight;
}

const at::Tensor& up_bias(SmallGpt& model) {
  return model->blocks[0]->as<coupler::testing::BlockImpl>()->up->bias;
}

// The model with the dequantized values, as ordinary tensors.
SmallGpt dense_copy(SmallGpt& quantized) {
  SmallGpt copy = real_gpt();
  const torch::NoGradGuard no_grad;
  const auto from = quantized->named_parameters();
  for (const auto& item : copy->named_parameters()) item.value().copy_(from[item.key()].clone());
  return copy;
}

class Quantized : public ::testing::TestWithParam<int> {
 protected:
  QuantizeOptions options() {
    QuantizeOptions result;
    result.bits = GetParam();
    result.group_size = 32;
    result.report = [this](const QuantizationReport& report) { reports_.push_back(report); };
    return result;
  }
  DispatchedModel load(SmallGpt& model, const DeviceMap& map, const QuantizeOptions& quantize) {
    LoadAndDispatchOptions load;
    load.device_map = map;
    load.offload_folder = here_.at("offload");
    load.quantize = quantize;
    return load_checkpoint_and_dispatch(model, checkpoint_, load);
  }

  const Folder here_;
  SmallGpt whole_ = real_gpt();
  const at::Tensor expected_ = output_of(whole_);
  const std::string checkpoint_ = [this] {
    write_safetensors(here_.at("model.safetensors"), tensors_of(*whole_));
    return here_.at("model.safetensors");
  }();
  std::vector<QuantizationReport> reports_;
};

TEST_P(Quantized, InMemory_ComputesWithWhatItSaysItsValuesAre) {
  SmallGpt model = real_gpt();
  const auto held = quantize(model, options());
  EXPECT_EQ(up_weight(model).sizes(), at::IntArrayRef({128, 32}));
  EXPECT_EQ(up_weight(model).scalar_type(), at::kFloat);
  SmallGpt dense = dense_copy(model);
  EXPECT_LT(coupler::testing::difference(output_of(model), output_of(dense)), 1e-4);
  const double off = coupler::testing::difference(output_of(model), expected_);
  EXPECT_GT(off, 0);
  EXPECT_LT(off, GetParam() == 8 ? 0.05 : 1.0);
  ASSERT_EQ(reports_.size(), 1U);
  ASSERT_EQ(reports_[0].layers.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    const QuantizedLayer& layer = reports_[0].layers[i];
    EXPECT_GE(reports_[0].layers[i == 0 ? 0 : i - 1].relative_error, layer.relative_error);
    const at::Tensor before = whole_->named_parameters()[layer.name].detach();
    const at::Tensor after = model->named_parameters()[layer.name].clone();
    EXPECT_NEAR(layer.relative_error, ((after - before).norm() / before.norm()).item<double>(),
                1e-5);
    EXPECT_NEAR(layer.max_error, (after - before).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(layer.bytes_before, 4U * 4096);
  }
}

// Every operation on a quantized weight sees the same values.
TEST_P(Quantized, EveryOperation_SeesTheValues) {
  SmallGpt model = real_gpt();
  const auto held = quantize(model, options());
  const torch::NoGradGuard no_grad;
  const at::Tensor& weight = up_weight(model);
  const at::Tensor values = weight.clone();
  EXPECT_FALSE(residency::has_intercept(values));
  const at::Tensor x = torch::randn({3, 32}), bias = torch::randn({128});
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    return a.allclose(b, 1e-4, 1e-4);
  };
  EXPECT_TRUE(near(torch::linear(x, weight, bias), torch::linear(x, values, bias)));
  EXPECT_TRUE(near(x.matmul(weight.t()), x.matmul(values.t())));
  EXPECT_TRUE(near(torch::addmm(bias, x, weight.t()), torch::addmm(bias, x, values.t())));
  EXPECT_TRUE(
      near(torch::addmm(bias, x, weight.t(), 2, 1), torch::addmm(bias, x, values.t(), 2, 1)));
  EXPECT_TRUE(near(weight.matmul(x.t()), values.matmul(x.t())));
  EXPECT_TRUE(near(x[0].matmul(weight.t()), x[0].matmul(values.t())));
  EXPECT_TRUE(near(x.matmul(weight.slice(0, 8, 24).t()), x.matmul(values.slice(0, 8, 24).t())));
  EXPECT_TRUE((weight + 1).equal(values + 1));
  EXPECT_TRUE(weight.t().contiguous().equal(values.t().contiguous()));
  EXPECT_TRUE(weight[3].sum().equal(values[3].sum()));
  EXPECT_TRUE(weight.to(at::kDouble).equal(values.to(at::kDouble)));
  EXPECT_TRUE(torch::cat({weight, values}).equal(torch::cat({values, values})));
  EXPECT_TRUE(weight.view({64, 64}).detach().reshape({-1}).equal(values.reshape({-1})));
  EXPECT_EQ(weight.data_ptr(), nullptr);  // packed bytes cannot be mistaken for numbers
  const at::Tensor half = x.to(at::kBFloat16);
  EXPECT_NE(hinted_message_of([&] {
              try {
                torch::linear(half, weight);
              } catch (const c10::Error& error) {
                throw Error(ErrorCode::kUsage, error.what_without_backtrace(), {.hint = "h"});
              }
            }),
            "no error");  // LibTorch's own error, as for any float weight
}

TEST_P(Quantized, FromACheckpoint_OnEveryPlace_IsTheSame) {
  SmallGpt in_memory = real_gpt();
  const auto held = quantize(in_memory, options());
  const at::Tensor quantized = output_of(in_memory);
  for (const DeviceMap& map : {DeviceMap{{"", "cpu"}}, DeviceMap{{"", "disk"}},
                               DeviceMap{{"", "cpu"}, {"blocks.1", "disk"}}}) {
    SmallGpt model = empty_gpt();
    const auto placed = load(model, map, options());
    EXPECT_TRUE(output_of(model).equal(quantized)) << map.to_json();
    EXPECT_TRUE(output_of(model).equal(quantized)) << map.to_json();
  }
}

TEST_P(Quantized, OnTheDisk_IsWrittenOnce_AndReused) {
  at::Tensor first;
  for (const bool again : {false, true}) {
    SmallGpt model = empty_gpt();
    const auto placed = load(model, {{"", "disk"}}, options());
    EXPECT_EQ(reports_.back().reused, again);
    if (again) {
      EXPECT_TRUE(output_of(model).equal(first));
      EXPECT_EQ(reports_[0].layers[0].relative_error, reports_[1].layers[0].relative_error);
      EXPECT_GT(reports_[1].layers[5].relative_error, 0);
    } else {
      first = output_of(model);
    }
    // Operations use the weight in place in the packed file.
    const residency::ManagedStorage* const home = residency::managed_storage_of(up_weight(model));
    EXPECT_NE(file_at(home->memory).find("quantized-"), std::string::npos);
  }
  // A different modification time means a different checkpoint.
  const utimbuf time{1000, 1000};
  ASSERT_EQ(::utime(checkpoint_.c_str(), &time), 0);
  SmallGpt model = empty_gpt();
  const auto placed = load(model, {{"", "disk"}}, options());
  EXPECT_FALSE(reports_.back().reused);
}

TEST_P(Quantized, DamagedFileOfPackedWeights_IsWrittenAnew) {
  const auto each = [&](const auto& visit) {
    for (const auto& entry : std::filesystem::directory_iterator(here_.at("offload")))
      visit(entry.path());
  };
  at::Tensor first;
  for (const char* suffix : {"", ".json", ".safetensors"}) {
    if (*suffix != 0) {
      each([&](const std::filesystem::path& path) {
        if (path.extension() == suffix) std::ofstream(path) << "{\"made_from\": 1";
      });
    }
    SmallGpt model = empty_gpt();
    const auto placed = load(model, {{"", "disk"}}, options());
    EXPECT_FALSE(reports_.back().reused) << suffix;
    if (*suffix == 0) first = output_of(model);
    EXPECT_TRUE(output_of(model).equal(first)) << suffix;
  }
  each([](const std::filesystem::path& path) { EXPECT_NE(path.extension(), ".part"); });
}

TEST_P(Quantized, DispatchModel_WithValuesOnTheDisk_IsPackedThere) {
  SmallGpt model = real_gpt();
  DispatchOptions dispatch;
  dispatch.offload_folder = here_.at("own");
  dispatch.quantize = options();
  const auto placed = dispatch_model(model, {{"", "disk"}}, dispatch);
  SmallGpt other = real_gpt();
  const auto held = quantize(other, options());
  EXPECT_TRUE(output_of(model).equal(output_of(other)));
}

TEST_P(Quantized, Gradients_PassThroughWeights) {
  SmallGpt model = real_gpt();
  const auto held = quantize(model, options());
  for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.requires_grad());
  EXPECT_FALSE(model->forward(coupler::testing::tokens()).requires_grad());
  SmallGpt dense = dense_copy(model);
  for (const auto& parameter : dense->parameters()) parameter.set_requires_grad(false);
  // With biases, and in the types of autocast; for second derivatives, too.
  for (const bool autocast : {false, true}) {
    std::vector<at::Tensor> gradients;
    for (SmallGpt* const each : {&model, &dense}) {
      const AutocastScope scope(
          AutocastSettings{.device = at::kCPU, .type = at::kBFloat16, .enabled = autocast});
      const std::vector<at::Tensor> inputs = {(*each)->embedding->weight, up_bias(*each)};
      for (const at::Tensor& input : inputs) input.set_requires_grad(true);
      const at::Tensor loss =
          (*each)->forward(coupler::testing::tokens()).to(at::kFloat).square().mean();
      const auto first = torch::autograd::grad({loss}, inputs, {}, true, true);
      const auto second = torch::autograd::grad({first[0].square().sum()}, {inputs[0]});
      gradients.insert(gradients.end(), {first[0].detach(), first[1].detach(), second[0]});
    }
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor& expected = gradients[i + 3];
      EXPECT_LT((gradients[i] - expected).norm().item<double>(),
                (autocast ? 2e-2 : 1e-4) * expected.norm().item<double>())
          << autocast << " " << i;
    }
  }
}

TEST_P(Quantized, GradientsOfWeights_AreRefusedByName) {
  SmallGpt model = real_gpt();
  const auto held = quantize(model, options());
  const at::Tensor& weight = model->blocks[2]->as<coupler::testing::BlockImpl>()->down->weight;
  weight.set_requires_grad(true);
  const at::Tensor output = model->forward(coupler::testing::tokens());
  const std::string message = hinted_message_of([&] { output.sum().backward(); });
  EXPECT_NE(message.find("blocks.2.down.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("no gradient"), std::string::npos) << message;
  // Also through an operation other than a product.
  up_weight(model).set_requires_grad(true);
  const std::string other = hinted_message_of([&] { (up_weight(model) * 2).sum().backward(); });
  EXPECT_NE(other.find("blocks.0.up.weight"), std::string::npos) << other;
}

TEST_P(Quantized, Writing_IsRefusedByName) {
  SmallGpt model = real_gpt();
  const auto held = quantize(model, options());
  const torch::NoGradGuard no_grad;
  const std::string message = hinted_message_of([&] { up_weight(model).mul_(2); });
  EXPECT_NE(message.find("blocks.0.up.weight' is quantized"), std::string::npos) << message;
  EXPECT_NE(hinted_message_of([&] {
              const auto twice = quantize(model, options());
            }).find("already dispatched"),
            std::string::npos);
}

TEST_P(Quantized, DiskWithoutAFolder_SaysSo) {
  SmallGpt model = empty_gpt();
  LoadAndDispatchOptions load;
  load.device_map = DeviceMap{{"", "disk"}};
  load.quantize = options();
  const std::string message = hinted_message_of(
      [&] { const auto placed = load_checkpoint_and_dispatch(model, checkpoint_, load); });
  EXPECT_NE(message.find("offload_folder"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Bits, Quantized, ::testing::Values(8, 4),
                         [](const auto& bits) { return "Int" + std::to_string(bits.param); });

TEST(QuantizedHalf, Weights_ArePackedFromTheCheckpointsOwnType) {
  const Folder here;
  SmallGpt whole = real_gpt();
  write_safetensors(here.at("model.safetensors"), tensors_of(*whole));
  SmallGpt model = empty_gpt();
  LoadAndDispatchOptions load;
  load.device_map = DeviceMap{{"", "cpu"}};
  load.dtype = at::kBFloat16;
  load.quantize = QuantizeOptions{.bits = 8};
  const auto placed = load_checkpoint_and_dispatch(model, here.at("model.safetensors"), load);
  EXPECT_EQ(up_weight(model).scalar_type(), at::kBFloat16);
  const double off =
      coupler::testing::difference(output_of(model).to(at::kFloat), output_of(whole));
  EXPECT_LT(off, 0.2);
}

}  // namespace
}  // namespace coupler::big_model
