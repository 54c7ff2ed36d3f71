// Device maps of LibTorch modules; the maps themselves are tested without LibTorch.
#include "big_model/module_maps.h"

#include <coupler/device_map.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace coupler::big_model {
namespace {

namespace nn = torch::nn;

constexpr int64_t kModelWidth = 4096;

nn::Linear projection() {
  return nn::Linear(nn::LinearOptions(kModelWidth, kModelWidth).bias(false));
}

struct GPTJAttentionImpl : nn::Module {
  nn::Linear k_proj = register_module("k_proj", projection());
  nn::Linear v_proj = register_module("v_proj", projection());
  nn::Linear q_proj = register_module("q_proj", projection());
  nn::Linear out_proj = register_module("out_proj", projection());
  torch::Tensor embed_positions = register_buffer("embed_positions", torch::zeros({2048, 64}));
};
TORCH_MODULE(GPTJAttention);

struct GPTJBlockImpl : nn::Module {
  nn::LayerNorm ln_1 = register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({kModelWidth})));
  GPTJAttention attn = register_module("attn", GPTJAttention());
  nn::Linear fc_in = register_module("fc_in", nn::Linear(kModelWidth, 4 * kModelWidth));
  nn::Linear fc_out = register_module("fc_out", nn::Linear(4 * kModelWidth, kModelWidth));
};
TORCH_MODULE(GPTJBlock);

struct GPTJModelImpl : nn::Module {
  nn::Embedding wte = register_module("wte", nn::Embedding(50400, kModelWidth));
  nn::Dropout drop = register_module("drop", nn::Dropout());
  nn::ModuleList h = register_module("h", nn::ModuleList());
  nn::LayerNorm ln_f{nullptr};

  GPTJModelImpl() {
    for (int i = 0; i < 28; ++i) h->push_back(GPTJBlock());
    ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({kModelWidth})));
  }
};
TORCH_MODULE(GPTJModel);

struct GPTJForCausalLMImpl : nn::Module {
  GPTJModel transformer = register_module("transformer", GPTJModel());
  nn::Linear lm_head = register_module("lm_head", nn::Linear(kModelWidth, 50400));
};
TORCH_MODULE(GPTJForCausalLM);

// The map for this model on Accelerate's page about big models; nothing here has memory.
TEST(ModuleMaps, GptJOnMeta_GivesThePrintedMap) {
  GPTJForCausalLM model{nullptr};
  {
    const EmptyWeights empty;
    model = GPTJForCausalLM();
  }
  DeviceMapOptions options;
  options.max_memory = {{0, "20GiB"}, {1, "20GiB"}};
  options.no_split_module_classes = {"GPTJBlock"};
  const DeviceMap map = infer_auto_device_map(model, options);
  DeviceMap printed = {{"transformer.wte", 0}, {"transformer.drop", 0}};
  for (int i = 0; i < 28; ++i) printed.set("transformer.h." + std::to_string(i), i < 24 ? 0 : 1);
  printed.set("transformer.ln_f", 1);
  printed.set("lm_head", 1);
  EXPECT_EQ(map.to_json(), printed.to_json());
  EXPECT_NO_THROW(check_device_map(*model, map));
  EXPECT_NE(to_table(*model, map, options).find("transformer.h.0 … 23   0"), std::string::npos);

  options.mode = "optimal";
  const PredictedRun fastest = predict_run(*model, infer_auto_device_map(model, options), options);
  EXPECT_LE(fastest.seconds, predict_run(*model, map, options).seconds);
}

TEST(ModuleMaps, TiedWeights_AreKnownByHandleAndByStorage) {
  nn::Sequential model(nn::Embedding(10, 4), nn::Linear(4, 4), nn::Linear(4, 10));
  const auto parameters = [&](size_t i) { return model[i]->named_parameters(); };
  const auto storages = [&] {
    const placement::ModuleTree tree = describe_module(*model);
    return std::pair(tree.tensors.front().storage, tree.tensors[3].storage);  // 0.weight, 2.weight
  };
  EXPECT_NE(storages().first, storages().second);
  parameters(2)["weight"].set_data(parameters(0)["weight"]);
  EXPECT_EQ(storages().first, storages().second);

  try {
    check_device_map(*model, {{"", 0}, {"2", 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().subject, "2.weight");
  }
}

TEST(ModuleMaps, Description_HasNamesTypesAndSizes) {
  nn::Sequential model(nn::BatchNorm1d(3), nn::Dropout(), nn::Linear(2, 4));
  model[2]->to(torch::kFloat16);
  const placement::ModuleTree tree = describe_module(*model);
  ASSERT_EQ(tree.modules.size(), 4u);
  EXPECT_EQ(tree.modules[1].name, "0");
  EXPECT_TRUE(placement::names_class({"BatchNorm1d"}, tree.modules[1].type))
      << tree.modules[1].type;
  ASSERT_EQ(tree.tensors.size(), 7u);
  EXPECT_EQ(tree.tensors[0].name, "0.weight");
  EXPECT_EQ(tree.tensors[0].type->name, "float32");
  EXPECT_EQ(tree.tensors[0].elements, 3u);
  EXPECT_EQ(tree.tensors[4].name, "0.num_batches_tracked");
  EXPECT_EQ(tree.tensors[4].type->name, "int64");
  EXPECT_EQ(tree.tensors[4].kind, placement::TensorKind::kBuffer);
  EXPECT_EQ(tree.tensors[5].name, "2.weight");
  EXPECT_EQ(tree.tensors[5].type->name, "float16");
  EXPECT_EQ(tree.tensors[5].elements, 8u);
}

TEST(ModuleMaps, WithoutMaxMemory_TheMachinesIsTaken) {
  const nn::Linear model(4, 4);
  const DeviceMap map = infer_auto_device_map(model);
  ASSERT_EQ(map.entries().size(), 1u);
  EXPECT_FALSE(map.entries().front().second.is_disk());
}

TEST(ModuleMaps, BalancedMemory_DividesTheModel) {
  nn::Sequential model(nn::Linear(100, 100), nn::Linear(100, 100));
  DeviceMapOptions options;
  options.max_memory = {{0, "1MiB"}, {1, "1MiB"}};
  const MaxMemory balanced = get_balanced_memory(*model, options);
  EXPECT_EQ(balanced.of(0), 40400u + 50500u);  // half, and 5/4 of a layer
  EXPECT_EQ(balanced.of(1), 1u << 20);
}

}  // namespace
}  // namespace coupler::big_model
