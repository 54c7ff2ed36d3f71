// Every architecture that grew out of another, against what transformers computed from the same
// folder: logits, loss and gradients, and greedy continuations. Texts are longer than the attention
// windows.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/sin.h>
#include <coupler/big_model.h>
#include <coupler/language_model.h>
#include <coupler/state_dict.h>
#include <coupler/tensor_parallel.h>
#include <coupler/text.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "estimate/divide_layers.h"
#include "estimate/transformer.h"
#include "fixture.h"
#include "sharding/decoder_plan.h"
#include "sharding/model_division.h"

namespace coupler {
namespace {

class Architectures : public ::testing::TestWithParam<const char*> {
 protected:
  Architectures() {
    const auto reference = SafeTensors::open(folder + "/reference.safetensors");
    tokens = reference.tensor("tokens");
    labels = reference.tensor("labels");
    logits = reference.tensor("logits");
    loss = reference.tensor("loss").item<double>();
  }
  // In float, as the references; the files have 16 bits.
  TextGeneration opened(const DeviceMap& map = DeviceMap{{"", "cpu"}}) const {
    return pipeline("text-generation", folder, {.device_map = map, .dtype = at::kFloat});
  }

  std::string folder = fixture(std::string("architectures/") + GetParam());
  at::Tensor tokens, labels, logits;
  double loss = 0;
};

TEST_P(Architectures, Logits_AreTransformers_InMemoryAndFromTheDisk) {
  const at::NoGradGuard no_grad;
  for (const char* place : {"cpu", "disk"})
    EXPECT_LT(apart(opened(DeviceMap{{"", place}}).model().forward(tokens), logits), 1e-4) << place;
  auto model = opened();
  at::Tensor x = tokens;
  for (const PipelineLayer& layer : model.model().pipeline_layers()) x = layer.one_tensor(x);
  EXPECT_LT(apart(x, logits), 1e-4);
}

TEST_P(Architectures, Cache_ChangesNothing) {
  auto generator = opened();
  const at::NoGradGuard no_grad;
  KeyValueCache cache;
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const int64_t count : {4, 1, 1, 5, 2, 10, 1}) {
    parts.push_back(generator.model().forward(tokens.narrow(1, at, count), &cache));
    at += count;
  }
  ASSERT_EQ(at, tokens.size(1));
  EXPECT_LT(apart(at::cat(parts, 1), logits), 1e-4);
}

TEST_P(Architectures, Greedy_GoesOnAsTransformersDoes_AloneAndInBatches) {
  std::vector<std::vector<int64_t>> prompts, expected;
  for (const auto& row : read_json(folder + "/greedy.json")) {
    prompts.push_back(row["ids"]);
    expected.push_back(row["continued"]);
  }
  ASSERT_EQ(prompts.size(), 20U);
  auto generator = opened();
  for (const bool use_cache : {true, false}) {
    for (const size_t batch_size : {1, 7}) {
      const auto given = generator.continue_tokens(
          prompts, {.max_new_tokens = 16, .use_cache = use_cache, .batch_size = batch_size});
      for (size_t i = 0; i < prompts.size(); ++i)
        EXPECT_EQ(given[i].tokens, expected[i])
            << i << (use_cache ? " with" : " without") << " cache";
    }
  }
}

// As fingerprint in make_architectures.py.
std::vector<double> fingerprint(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).flatten();
  const at::Tensor places = at::arange(flat.numel(), flat.options());
  return {flat.norm().item<double>(), flat.mul(at::cos(places)).sum().item<double>(),
          flat.mul(at::sin(places.mul(0.7))).sum().item<double>()};
}

TEST_P(Architectures, LossAndGradients_AreTransformers) {
  const auto model = make_language_model(ModelConfig::open(folder));
  const auto names = checkpoint_names(*model);
  load_checkpoint_in_model(*model, folder, {}, {.rename = names});
  const at::Tensor given =
      at::cross_entropy_loss(model->forward(tokens).flatten(0, 1), labels.flatten());
  EXPECT_NEAR(given.item<double>(), loss, 1e-5);
  given.backward();
  std::map<std::string, at::Tensor> own;
  for (const auto& item : model->named_parameters()) own[item.key()] = item.value();
  std::set<const void*> compared;
  const nlohmann::json expected = read_json(folder + "/gradients.json");
  for (const auto& [path, sums] : expected.items()) {
    const std::string name = names(path);
    ASSERT_TRUE(own.contains(name)) << name;
    const std::vector<double> ours = fingerprint(own[name].grad());
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(ours[i], sums[i].get<double>(), 1e-4 * sums[0].get<double>() + 1e-6) << name;
    compared.insert(own[name].unsafeGetTensorImpl());
  }
  for (const auto& [name, parameter] : own)
    EXPECT_TRUE(compared.contains(parameter.unsafeGetTensorImpl())) << name;
}

// What `coupler estimate` and device maps are computed from.
TEST_P(Architectures, Estimate_KnowsTheParameters) {
  const auto model = make_language_model(ModelConfig::open(folder));
  std::map<std::string, std::vector<uint64_t>> own, estimated;
  std::set<const void*> seen;
  for (const auto& item : model->named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;  // a tied head
    const auto sizes = item.value().sizes();
    own[item.key()] = {sizes.begin(), sizes.end()};
  }
  std::ifstream in(folder + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const auto& parameter : estimate::transformer_of(text, "config.json").parameters)
    estimated[parameter.name] = parameter.sizes;
  EXPECT_EQ(estimated, own);
}

// The plan that `coupler estimate` has of a config.json divides as the model's own does.
TEST_P(Architectures, Estimate_DividesAsTheModel) {
  constexpr int kRanks = 2;
  const auto model = make_language_model(ModelConfig::open(folder));
  std::vector<sharding::PlannedLayers> plan;
  const auto* const layers = dynamic_cast<const TensorParallelLayers*>(model.get());
  ASSERT_NE(layers, nullptr);
  for (const TensorRule& rule : layers->tensor_plan(kRanks))
    plan.push_back(sharding::planned_layers({rule.pattern, rule.style, rule.multiple}));
  sharding::PlannedModel planned;
  for (const auto& item : model->named_modules())
    planned.modules.push_back({item.key(), item.value()->name()});
  std::map<const void*, std::string> first;
  for (const auto& item : model->named_parameters()) {
    const auto [known, is_new] = first.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new) {
      planned.parameters.push_back({item.key(), item.value().sizes().vec()});
    } else {
      planned.aliases.emplace_back(item.key(), known->second);
    }
  }
  std::map<std::string, std::vector<int64_t>> own, estimated;
  for (const auto& [index, division] :
       sharding::divide_model(planned, {plan}, kRanks, 0).parameters)
    own[planned.parameters[index].name] = division.part_sizes();
  std::ifstream in(folder + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  estimate::LoggedModel logged = estimate::transformer_of(text, "config.json");
  estimate::divide_layers(logged, {estimate::plan_of_transformer(text, "config.json", kRanks)},
                          kRanks);
  for (const auto& parameter : logged.parameters) {
    if (parameter.divided())
      estimated[parameter.name] = {parameter.sizes.begin(), parameter.sizes.end()};
  }
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(estimated, own);
}

TEST_P(Architectures, SavePretrained_ReadsBackTheSame) {
  const TestFolder saved;
  opened(DeviceMap{{"", "disk"}}).save_pretrained(saved.path());
  auto again = pipeline("text-generation", saved.path());
  const at::NoGradGuard no_grad;
  EXPECT_LT(apart(again.model().forward(tokens), logits), 1e-4);
  const char* const python = std::getenv("COUPLER_TEST_PYTHON");
  if (python == nullptr) return;
  const std::string command =
      std::string(python) + " " MODEL_TESTS "/open_saved.py " + saved.path() + " " + folder;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

INSTANTIATE_TEST_SUITE_P(, Architectures,
                         ::testing::Values("mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3",
                                           "gpt_neox", "gpt_neox-sequential", "phi", "opt",
                                           "opt-post"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ArchitectureConfigs, WrongOnes_AreRefusedWithTheKey) {
  const struct {
    const char* name;
    const char* key;
    nlohmann::json value;
    std::vector<std::string> message;
  } cases[] = {
      {"mistral",
       "/model_type",
       "mamba",
       {"'mamba' is not supported; supported: gemma, gemma2, gemma3_text, gpt2, gpt_neox, gptj, "
        "llama, mistral, opt, phi, qwen2, qwen3"}},
      {"mistral", "/model_type", "qwen3", {"q_norm"}},
      {"mistral", "/sliding_window", 0, {"'sliding_window' must be a positive integer, not 0"}},
      {"mistral", "/num_key_value_heads", 3, {"'num_key_value_heads' does not divide"}},
      {"mistral", "/head_dim", 7, {"'head_dim' makes 7 coordinates"}},
      {"qwen2", "/layer_types", {"full_attention"}, {"'layer_types' has 1 entries for 2 layers"}},
      {"qwen2", "/layer_types/1", "linear_attention", {"'layer_types' has 'linear_attention'"}},
      {"gemma2", "/query_pre_attn_scalar", 0, {"'query_pre_attn_scalar' must be above 0"}},
      {"gemma2",
       "/final_logit_softcapping",
       -1,
       {"'final_logit_softcapping' must not be negative"}},
      {"gemma2", "/use_bidirectional_attention", true, {"'use_bidirectional_attention' is not"}},
      {"gemma3",
       "/rope_parameters/full_attention/rope_type",
       "yarn",
       {"rope_parameters: full_attention: rope_type 'yarn' is not supported"}},
      {"gpt_neox", "/rope_parameters/partial_rotary_factor", 1.5, {"'rotary_pct' must be above 0"}},
      {"phi",
       "/rope_parameters/partial_rotary_factor",
       0.1,
       {"'partial_rotary_factor' makes 0 coordinates"}},
      {"opt", "/hidden_size", 30, {"'num_attention_heads' does not divide 'hidden_size'"}},
      {"opt-post", "/word_embed_proj_dim", 32, {"model.decoder.embed_tokens"}},
  };
  for (const auto& wrong : cases) {
    const TestFolder folder;
    folder.copy(std::string("architectures/") + wrong.name);
    folder.set("config.json", wrong.key, wrong.value);
    expect_message([&] { (void)pipeline("text-generation", folder.path()); }, wrong.message);
  }
}

// Files from before transformers 5 name rotary positions and windows otherwise.
TEST(ArchitectureConfigs, OlderNames_MeanTheSame) {
  const auto logits_of = [](const std::string& folder) {
    auto generator = pipeline("text-generation", folder, {.dtype = at::kFloat});
    const at::NoGradGuard no_grad;
    return generator.model().forward(
        SafeTensors::open(folder + "/reference.safetensors").tensor("tokens"));
  };
  const auto older = [&](const char* name, const nlohmann::json& keys) {
    const TestFolder folder;
    folder.copy(std::string("architectures/") + name);
    folder.set("config.json", "/rope_parameters", nullptr);
    for (const auto& [key, value] : keys.items()) folder.set("config.json", "/" + key, value);
    const at::Tensor expected =
        SafeTensors::open(folder.path() + "/reference.safetensors").tensor("logits");
    EXPECT_LT(apart(logits_of(folder.path()), expected), 1e-4) << name;
  };
  older("qwen2", {{"rope_theta", 1e6}, {"layer_types", nullptr}});
  older("gpt_neox", {{"rotary_pct", 0.5}, {"rotary_emb_base", 10000}});
  older("phi", {{"partial_rotary_factor", 0.5}});
  older("gemma3", {{"rope_theta", 1e4},
                   {"rope_local_base_freq", 100.0},
                   {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}},
                   {"layer_types", nullptr},
                   {"sliding_window_pattern", 2}});
  older("gemma2", {{"layer_types", nullptr}});
}

}  // namespace
}  // namespace coupler
