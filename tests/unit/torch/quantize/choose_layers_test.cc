// Which layers are quantized, and the errors for wrong options.
#include "quantize/choose_layers.h"

#include <coupler/error.h>
#include <coupler/quantize.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

namespace coupler::quantization {
namespace {

using Names = std::vector<std::string>;

struct TurnedImpl : torch::nn::Module {
  TurnedImpl() { weight = register_parameter("weight", torch::zeros({64, 32})); }
  at::Tensor weight;
};
TORCH_MODULE(Turned);

struct SharingImpl : torch::nn::Module {
  explicit SharingImpl(const at::Tensor& with) { weight = register_parameter("weight", with); }
  at::Tensor weight;
};
TORCH_MODULE(Sharing);

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(9, 64));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 96));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(96, 64));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 1, 3));
  Turned turned = register_module("turned", Turned());
  Sharing head = register_module("head", Sharing(embedding->weight));
  Sharing again = register_module("again", Sharing(up->weight));
};
TORCH_MODULE(Net);

Names chosen(const QuantizeOptions& options) {
  Net net;
  const strategy::Model model = strategy::describe(*net);
  Names names;
  for (const ChosenLayer& layer : choose_layers(model, options))
    names.push_back(model.parameters[layer.parameter].name);
  return names;
}

void expect_choice_refused(const QuantizeOptions& options, const Names& parts) {
  try {
    chosen(options);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string text = std::string(error.what()) + "\n" + error.detail().hint;
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n  in: " << text;
  }
}

TEST(ChooseLayers, LinearWeightsAndClassesNamed_NothingElse) {
  // up is shared with a class that is not named as linear.
  EXPECT_EQ(chosen({}), Names({"down.weight"}));
  EXPECT_EQ(chosen({.linear_classes = {"Sharing"}}), Names({"up.weight", "down.weight"}));
  EXPECT_EQ(chosen({.transposed_classes = {"Turned"}}), Names({"down.weight", "turned.weight"}));
}

TEST(ChooseLayers, Turned_HasOutputsAsRows) {
  Net net;
  const auto layers = choose_layers(
      strategy::describe(*net), {.bits = 4, .group_size = 32, .transposed_classes = {"Turned"}});
  EXPECT_TRUE(layers[1].transposed);
  EXPECT_EQ(layers[1].layout.rows, 32);
  EXPECT_EQ(layers[1].layout.columns, 64);
  EXPECT_EQ(layers[1].layout.bytes(), 32U * 32 + 32 * 2 * 4);
}

TEST(ChooseLayers, Skip_TakesPartsOfPaths) {
  EXPECT_EQ(chosen({.skip = {"turned"}, .transposed_classes = {"Turned"}}), Names({"down.weight"}));
  EXPECT_EQ(chosen({.skip = {"down.weight"}, .transposed_classes = {"Turned"}}),
            Names({"turned.weight"}));
}

TEST(ChooseLayers, WrongOptions_SayWhatIsRight) {
  expect_choice_refused({.bits = 3}, {"quantize.bits is 3", "8 or 4"});
  expect_choice_refused({.bits = 4, .group_size = 48}, {"group_size is 48", "32, 64, 128"});
  // Part of a word is not part of a path, and a layer that is not quantized cannot be skipped.
  for (const char* part : {"dow", "lm_head", "norm", ""})
    expect_choice_refused({.skip = {part}},
                          {"quantize.skip: '" + std::string(part) + "'", "no linear"});
  expect_choice_refused({.skip = {"down"}}, {"skip names every linear layer"});
  expect_choice_refused({.linear_classes = {"Conv2d"}},
                        {"conv.weight", "[1, 1, 3, 3]", "linear_classes"});
  torch::nn::Embedding none(4, 4);
  try {
    choose_layers(strategy::describe(*none), {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no linear layers"), std::string::npos);
  }
}

TEST(ChooseLayers, GroupsThatDoNotDivide_AreToldWithThoseThatDo) {
  expect_choice_refused({.bits = 4, .group_size = 64},
                        {"'down.weight' has 96 inputs", "group_size = 64", "use 32"});
  torch::nn::Linear odd(50, 4);
  try {
    choose_layers(strategy::describe(*odd), {.bits = 4});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.detail().hint.find("quantize.skip = {\"weight\"}"), std::string::npos)
        << error.detail().hint;
  }
}

TEST(QuantizationTable, WorstFirst_AndTheSum) {
  QuantizationReport report{.bits = 4, .group_size = 64, .layers = {}, .reused = false};
  report.layers = {{"a.weight", 0.125, 0.5, 4096, 576}, {"b.weight", 0.0625, 0.25, 4096, 576}};
  EXPECT_EQ(to_table(report),
            "weight    relative error  largest error       bytes\n"
            "a.weight        12.5000%            0.5       576 B\n"
            "b.weight         6.2500%           0.25       576 B\n"
            "2 weights of 4 bits, groups of 64: 1.1 KiB instead of 8.0 KiB\n");
  EXPECT_NE(to_table(report, 1).find("and 1 more"), std::string::npos);
}

}  // namespace
}  // namespace coupler::quantization
