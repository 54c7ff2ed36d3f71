// LoRA against PEFT: adapters that it wrote, its losses while training, its logits, and the files
// that we write. make_lora_fixtures.py made the expected values.
#include <ATen/core/grad_mode.h>
#include <coupler/big_model.h>
#include <coupler/error.h>
#include <coupler/language_model.h>
#include <coupler/lora.h>
#include <coupler/quantize.h>
#include <coupler/state_dict.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fixture.h"

namespace coupler {
namespace {

std::shared_ptr<LanguageModel> base_model(const char* name) {
  auto model = make_language_model(ModelConfig::open(fixture(name)));
  load_checkpoint_in_model(*model, fixture(name), {}, {.rename = checkpoint_names(*model)});
  return model;
}

// The same as in make_lora_fixtures.py.
at::Tensor batch_of(int64_t step, int64_t rows, int64_t columns, int64_t vocabulary) {
  at::Tensor tokens = torch::empty({rows, columns}, torch::kLong);
  auto to = tokens.accessor<int64_t, 2>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column)
      to[row][column] = (31 * step + 17 * row + 7 * column * (row + 1)) % vocabulary;
  }
  return tokens;
}

at::Tensor loss_of(LanguageModel& model, int64_t step) {
  const at::Tensor batch = batch_of(step % 3, 3, 12, model.vocabulary());
  const at::Tensor logits = model.forward(batch.slice(1, 0, -1));
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.slice(1, 1).flatten());
}

std::vector<double> train(LanguageModel& model, const LoraAdapter& adapter, int64_t steps) {
  torch::optim::AdamW optimizer(adapter.parameters(), torch::optim::AdamWOptions(2e-2));
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor loss = loss_of(model, step);
    losses.push_back(loss.item<double>());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return losses;
}

std::string safetensors_in(const std::string& folder) {
  return folder + "/adapter_model.safetensors";
}

TEST(LoraModels, Training_HasPeftsLosses_AndWritesItsAdapter) {
  const auto model = base_model("llama");
  const auto adapter = load_lora(*model, fixture("lora/llama/init"), {.trainable = true});
  EXPECT_EQ(adapter.layers().size(), 9U);
  const std::vector<double> losses = train(*model, adapter, 20);
  const auto expected = read_json(fixture("lora/llama/losses.json"));
  ASSERT_EQ(expected.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i].get<double>(), 1e-4) << "step " << i;
  EXPECT_LT(losses.back(), losses.front() - 1);  // it learns, or the comparison proves little

  const TestFolder to;
  adapter.save_pretrained(to.path(), "a/base");
  const auto written = SafeTensors::open(safetensors_in(to.path()));
  const auto peft = SafeTensors::open(safetensors_in(fixture("lora/llama/trained")));
  EXPECT_EQ(written.names(), peft.names());
  for (const std::string& name : peft.names())
    EXPECT_LT(apart(written.tensor(name), peft.tensor(name)), 1e-3) << name;
  // Every key has PEFT's own value, except the name of the base.
  const auto keys = read_json(to.path() + "/adapter_config.json");
  auto of_peft = read_json(fixture("lora/llama/trained/adapter_config.json"));
  of_peft["base_model_name_or_path"] = "a/base";
  for (const auto& [key, value] : keys.items()) {
    ASSERT_TRUE(of_peft.contains(key)) << key;
    EXPECT_EQ(value, of_peft[key]) << key;
  }
  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules", "use_rslora"})
    EXPECT_TRUE(keys.contains(key)) << key;
}

TEST(LoraModels, LossOfAReadAdapter_IsTheSame_AlsoMergedAndSavedAsAWholeModel) {
  const auto model = base_model("llama");
  const at::NoGradGuard no_grad;
  const double without = loss_of(*model, 0).item<double>();
  const auto adapter = load_lora(*model, fixture("lora/llama/trained"));
  const double with = loss_of(*model, 0).item<double>();
  EXPECT_GT(std::abs(with - without), 0.1);
  adapter.set_enabled(false);
  EXPECT_EQ(loss_of(*model, 0).item<double>(), without);
  adapter.set_enabled(true);
  adapter.merge();
  EXPECT_TRUE(adapter.merged());
  EXPECT_NEAR(loss_of(*model, 0).item<double>(), with, 1e-4);
  adapter.unmerge();
  EXPECT_NEAR(loss_of(*model, 0).item<double>(), with, 1e-4);
  adapter.set_enabled(false);
  EXPECT_NEAR(loss_of(*model, 0).item<double>(), without, 1e-4);
  adapter.set_enabled(true);
  adapter.merge_and_unload();
  EXPECT_NEAR(loss_of(*model, 0).item<double>(), with, 1e-4);
  const auto names = model->named_parameters().keys();
  const auto plain = base_model("llama")->named_parameters().keys();
  EXPECT_EQ(names, plain);
}

TEST(LoraModels, RsloraOfTransposedWeights_GivesPeftsLogits) {
  const auto model = base_model("gpt2");
  const auto adapter = load_lora(*model, fixture("lora/gpt2"), {.transposed_classes = {"Conv1D"}});
  const at::NoGradGuard no_grad;
  const at::Tensor expected =
      SafeTensors::open(fixture("lora/gpt2/logits.safetensors")).tensor("logits");
  const at::Tensor tokens = batch_of(1, 2, 9, model->vocabulary());
  EXPECT_LT(apart(model->forward(tokens), expected), 1e-4);
  adapter.merge();
  EXPECT_LT(apart(model->forward(tokens), expected), 1e-4);
}

// QLoRA: the base's gradients go through the packed weights to the layers below.
TEST(LoraModels, QuantizedBase_LearnsLikeItsDequantizedCopy) {
  for (const int bits : {8, 4}) {
    const auto packed = base_model("llama");
    QuantizeOptions options{.bits = bits, .group_size = 32};
    if (bits == 4) options.skip = {"mlp.down_proj"};
    const DispatchedModel kept = quantize(*packed, options);
    const auto dense = base_model("llama");
    {
      const at::NoGradGuard no_grad;
      const auto from = packed->named_parameters();
      for (const auto& item : dense->named_parameters())
        item.value().copy_(from[item.key()].clone());
    }
    std::vector<std::vector<double>> losses;
    for (LanguageModel* const model : {packed.get(), dense.get()}) {
      const auto adapter = load_lora(*model, fixture("lora/llama/init"), {.trainable = true});
      losses.push_back(train(*model, adapter, 8));
      if (model == packed.get())
        expect_message([&] { adapter.merge(); }, {"quantized", "full precision"});
    }
    for (size_t i = 0; i < losses[0].size(); ++i)
      EXPECT_NEAR(losses[0][i], losses[1][i], 2e-3) << bits << " bits, step " << i;
    EXPECT_LT(losses[0].back(), losses[0].front() - 0.5);
  }
}

TEST(LoraModels, FilesOfAnotherModel_AreRefusedByName) {
  const auto gpt = base_model("gpt2");
  const auto before = gpt->named_parameters().keys();
  expect_message([&] { load_lora(*gpt, fixture("lora/llama/trained")); },
                 {"model.layers.0.mlp.down_proj", "does not have"});
  expect_message([&] { load_lora(*gpt, fixture("lora/gpt2")); },
                 {"transformer.h.0.attn.c_attn", "Conv1D", "transposed_classes"});
  EXPECT_EQ(gpt->named_parameters().keys(), before);
  const auto model = base_model("llama");
  {
    const TestFolder here;
    here.copy("lora/llama/init");
    for (const auto& [key, value, part] :
         std::vector<std::tuple<std::string, nlohmann::json, std::string>>{
             {"use_dora", true, "'use_dora' is set"},
             {"bias", "lora_only", "'bias' is set"},
             {"modules_to_save", {"lm_head"}, "'modules_to_save' is set"},
             {"alpha_pattern", {{"q_proj", 3}}, "'alpha_pattern' is set"},
             {"peft_type", "IA3", "only LORA"},
             {"r", 0, "'r' must be"},
             {"r", "4", "'r' must be"},
             {"lora_dropout", 1.5, "'lora_dropout' must be"},
             {"init_lora_weights", "pissa_niter_4", "changes the base model"}}) {
      const auto was = read_json(here.path() + "/adapter_config.json")[key];
      here.set("adapter_config.json", "/" + key, value);
      expect_message([&] { load_lora(*model, here.path()); }, {"adapter_config.json", part});
      here.set("adapter_config.json", "/" + key, was);
    }
    const std::string whole = [&] {
      std::ifstream in(safetensors_in(here.path()), std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    }();
    here.write("adapter_model.safetensors", whole.substr(0, whole.size() / 2));
    expect_message([&] { load_lora(*model, here.path()); }, {"adapter_model.safetensors"});
    here.write("adapter_model.safetensors", whole);
    here.write("adapter_config.json", "{\"peft_type\": \"LORA\"");
    expect_message([&] { load_lora(*model, here.path()); }, {"adapter_config.json"});
  }
  expect_message([&] { load_lora(*model, fixture("lora")); }, {"adapter_config.json"});
  EXPECT_TRUE(model->parameters()[0].requires_grad());  // still as it was
}

}  // namespace
}  // namespace coupler
