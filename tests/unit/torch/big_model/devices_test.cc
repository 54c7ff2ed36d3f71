// Models on several devices: the test double's two, the CPU and a disk.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include <random>

#include "small_gpt.h"
#include "test_device.h"

namespace coupler::big_model {
namespace {

namespace nn = torch::nn;
using coupler::testing::BlockImpl;
using coupler::testing::device_bytes;
using coupler::testing::difference;
using coupler::testing::empty_gpt;
using coupler::testing::Folder;
using coupler::testing::hinted_message_of;
using coupler::testing::most_device_bytes;
using coupler::testing::output_of;
using coupler::testing::real_gpt;
using coupler::testing::reset_device_bytes;
using coupler::testing::SmallGpt;
using coupler::testing::tensors_of;
using coupler::testing::test_device;
using coupler::testing::tokens;
using coupler::testing::write_safetensors;

constexpr double kNear = 1e-4;

class Devices : public ::testing::Test {
 protected:
  Devices() {
    test_device(0);  // registers the test double
    write_safetensors(file(), tensors_of(*whole_));
  }
  std::string file() const { return here_.at("model.safetensors"); }
  double error(SmallGpt& model, const at::Tensor& input = tokens()) {
    return difference(output_of(model, input), expected_);
  }

  const Folder here_;
  SmallGpt whole_ = real_gpt();
  const at::Tensor expected_ = output_of(whole_);
};

TEST_F(Devices, EachLayerRunsWhereTheMapSays) {
  SmallGpt model = empty_gpt();
  const auto placed = load_checkpoint_and_dispatch(model, file(),
                                                   {.device_map = DeviceMap{{"embedding", 0},
                                                                            {"head", 0},
                                                                            {"norm", 1},
                                                                            {"blocks.0", 0},
                                                                            {"blocks.1", 1},
                                                                            {"blocks.2", "disk"}}});
  EXPECT_EQ(model->embedding->weight.device(), test_device(0));
  EXPECT_EQ(model->norm->weight.device(), test_device(1));
  EXPECT_EQ(model->blocks[2]->as<BlockImpl>()->up->weight.device(), test_device(0));  // for use
  EXPECT_LT(error(model), kNear);
  EXPECT_LT(error(model, tokens().to(test_device(1))), kNear);
  const at::Tensor output = model->forward(tokens());
  EXPECT_EQ(output.device(), test_device(0));
  // The output can be combined with the program's CPU tensors.
  EXPECT_NEAR((output - expected_).abs().sum().item<float>(), 0, 1e-3);
}

TEST_F(Devices, InitOnDevice_MakesModelsThere_TheInnermostOnes) {
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  {
    const InitOnDevice on(test_device(0));
    {
      const InitOnDevice inner(test_device(1));
      second = nn::Linear(4, 4);
    }
    first = nn::Linear(4, 4);
    EXPECT_TRUE(torch::zeros({2}, torch::kCPU).is_cpu());
  }
  third = nn::Linear(4, 4);
  EXPECT_EQ(first->weight.device(), test_device(0));
  EXPECT_EQ(first->bias.device(), test_device(0));
  EXPECT_EQ(second->weight.device(), test_device(1));
  EXPECT_TRUE(third->weight.is_cpu());
}

// Searched with measured rates, and run: the first layer fits on no accelerator.
TEST_F(Devices, OptimalMap_RunsAsItSays) {
  SmallGpt model = empty_gpt();
  const auto placed =
      load_checkpoint_and_dispatch(model, file(),
                                   {.device_map = "optimal",
                                    .max_memory = {{0, "40KiB"}, {1, "40KiB"}, {"cpu", "4GiB"}},
                                    .no_split_module_classes = {"Block"}});
  EXPECT_LT(error(model), kNear);
  EXPECT_EQ(device_map(model).entries(), placed.device_map().entries());
  EXPECT_LE(device_bytes(0), size_t{40} << 10);
  EXPECT_LE(device_bytes(1), size_t{40} << 10);
}

TEST_F(Devices, OffloadedLayers_TakeTheDevicesMemoryOnlyWhileTheyAreUsed) {
  constexpr int64_t kLayers = 8, kWidth = 128;
  SmallGpt large = real_gpt(kLayers, kWidth);
  const at::Tensor expected = output_of(large);
  write_safetensors(here_.at("large.safetensors"), tensors_of(*large));
  constexpr size_t kBlock = size_t{8} * kWidth * kWidth * sizeof(float);
  for (const char* place : {"cpu", "disk"}) {
    SmallGpt model = empty_gpt(kLayers, kWidth);
    const size_t before = device_bytes(0);
    {
      const auto placed =
          load_checkpoint_and_dispatch(model, here_.at("large.safetensors"),
                                       {.device_map = DeviceMap{{"", 0}, {"blocks", place}}});
      reset_device_bytes();
      for (int pass = 0; pass < 3; ++pass) {
        EXPECT_LT(difference(output_of(model), expected), kNear) << place << pass;
      }
      // One in use, two in transit (a unit is half a block), and activations.
      EXPECT_LT(most_device_bytes(0) - before, 3 * kBlock) << place;
    }
    EXPECT_EQ(device_bytes(0), before);
  }
}

TEST_F(Devices, CpuOffload_KeepsValuesInHostMemory) {
  SmallGpt model = real_gpt();
  const auto placed = cpu_offload(model, test_device(1));
  EXPECT_EQ(model->norm->weight.device(), test_device(1));
  EXPECT_EQ(model->blocks[0]->as<BlockImpl>()->scale.device(), test_device(1));
  EXPECT_LT(error(model), kNear);
}

TEST_F(Devices, InPlaceOperationsOnTheProgramsTensors_ReachThem) {
  SmallGpt model = empty_gpt();
  const auto placed =
      load_checkpoint_and_dispatch(model, file(), {.device_map = DeviceMap{{"", 1}}});
  const torch::NoGradGuard no_grad;
  at::Tensor mine = torch::zeros({32});
  at::Tensor& result = mine.add_(model->norm->weight);
  EXPECT_TRUE(result.is_same(mine));
  EXPECT_TRUE(mine.equal(torch::ones({32})));
  mine.copy_(model->norm->bias);
  EXPECT_TRUE(mine.equal(torch::zeros({32})));
}

TEST_F(Devices, Gradients_ReachTheInput) {
  nn::Sequential whole(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 4));
  const at::Tensor x = torch::randn({3, 8}).requires_grad_();
  whole->forward(x).sum().backward();
  const at::Tensor expected = x.grad().clone();
  x.mutable_grad().reset();
  const auto placed = dispatch_model(whole, {{"0", 0}, {"2", 1}});
  whole->forward(x).sum().backward();
  EXPECT_TRUE(x.grad().allclose(expected, 1e-6, 1e-7));
}

// Modules of many kinds, under random maps.
TEST_F(Devices, AnyMap_GivesTheSameResults) {
  struct ConvNetImpl : nn::Module {
    ConvNetImpl() {
      conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(4, 4, 3).padding(1)));
      norm = register_module("norm", nn::BatchNorm1d(4));
      rnn = register_module("rnn", nn::RNN(nn::RNNOptions(6, 6).batch_first(true)));
      layer = register_module("layer", nn::TransformerEncoderLayer(
                                           nn::TransformerEncoderLayerOptions(6, 2).dropout(0)));
      raw = register_parameter("raw", torch::randn({6, 6}));
    }
    at::Tensor forward(at::Tensor x) {
      x = x + norm->forward(conv->forward(x));
      x = x + std::get<0>(rnn->forward(x));
      x = layer->forward(x);
      return torch::einsum("bci,ij->bcj", {x, raw.t()}) + x.mean();
    }
    nn::Conv1d conv{nullptr};
    nn::BatchNorm1d norm{nullptr};
    nn::RNN rnn{nullptr};
    nn::TransformerEncoderLayer layer{nullptr};
    at::Tensor raw;
  };
  std::mt19937 random(11);
  const at::Tensor x = torch::randn({2, 4, 6});
  for (int round = 0; round < 30; ++round) {
    auto model = std::make_shared<ConvNetImpl>();
    model->eval();
    const torch::NoGradGuard no_grad;
    const at::Tensor expected = model->forward(x);
    DeviceMap map;
    std::string text;
    for (const auto& item : model->named_parameters()) {
      const MapDevice places[] = {0, 1, "cpu", "disk"};
      map.set(item.key(), places[random() % 4]);
    }
    for (const auto& item : model->named_buffers())
      map.set(item.key(), static_cast<int>(random() % 2));
    const auto placed = dispatch_model(*model, map, {.offload_folder = here_.at("offload")});
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_TRUE(model->forward(x).cpu().allclose(expected, 1e-5, 1e-6)) << map.to_json();
    }
  }
}

}  // namespace
}  // namespace coupler::big_model
