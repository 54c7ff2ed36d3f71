// Language models against the results of transformers for the same folders: in memory, from their
// files, with and without a cache, in batches and one by one.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/language_model.h>
#include <coupler/state_dict.h>
#include <coupler/text.h>

#include <memory>
#include <string>

#include "fixture.h"

namespace coupler {
namespace {

class LanguageModels : public ::testing::TestWithParam<const char*> {
 protected:
  LanguageModels() {
    const auto reference = SafeTensors::open(folder + "/reference.safetensors");
    tokens = reference.tensor("tokens");
    logits = reference.tensor("logits");
    half = reference.tensor("bfloat16");
  }
  at::Tensor scores(const PretrainedOptions& options) {
    auto generator = pipeline("text-generation", folder, options);
    const at::NoGradGuard no_grad;
    return generator.model().forward(tokens).to(at::kFloat);
  }

  std::string folder = fixture(GetParam());
  at::Tensor tokens, logits, half;
};

TEST_P(LanguageModels, EveryPlace_GivesTransformersLogits) {
  for (const DeviceMap& map : {DeviceMap{{"", "cpu"}}, DeviceMap{{"", "disk"}},
                               DeviceMap{{"", "disk"}, {"lm_head", "cpu"}}}) {
    // A tied head cannot be separate from the embedding.
    const bool tied =
        map.entries().size() > 1 && (folder == fixture("gpt2") || folder == fixture("llama3"));
    if (tied) continue;
    EXPECT_LT(apart(scores({.device_map = map}), logits), 1e-4) << map.to_json();
  }
  for (const char* mode : {"auto", "sequential", "optimal"})
    EXPECT_LT(apart(scores({.device_map = mode}), logits), 1e-4) << mode;
}

// The layers that a pipeline over ranks divides.
TEST_P(LanguageModels, LayersOneAfterTheOther_GiveTransformersLogits) {
  auto generator = pipeline("text-generation", folder, {});
  const at::NoGradGuard no_grad;
  at::Tensor x = tokens;
  for (const PipelineLayer& layer : generator.model().pipeline_layers()) x = layer.one_tensor(x);
  EXPECT_LT(apart(x, logits), 1e-4);
}

TEST_P(LanguageModels, Bfloat16_IsAsFarFromFloatAsTransformers) {
  const at::Tensor ours = scores({.dtype = at::kBFloat16});
  EXPECT_LT(apart(ours, logits), 1.5 * apart(half, logits) + 0.05);
  EXPECT_LT(apart(scores({.device_map = DeviceMap{{"", "disk"}}, .dtype = at::kBFloat16}), ours),
            1e-6);
}

TEST_P(LanguageModels, Constructed_TakesACheckpointInTheUsualWay) {
  const auto config = ModelConfig::open(folder);
  const auto model = make_language_model(config);
  load_checkpoint_in_model(*model, folder, {}, {.rename = checkpoint_names(*model)});
  const at::NoGradGuard no_grad;
  EXPECT_LT(apart(model->forward(tokens), logits), 1e-4);
}

TEST_P(LanguageModels, Cache_ChangesNothing) {
  auto generator = pipeline("text-generation", folder);
  LanguageModel& model = generator.model();
  const at::NoGradGuard no_grad;
  KeyValueCache cache;  // without capacity: it grows
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const int64_t count : {4, 1, 1, 5, 2}) {
    parts.push_back(model.forward(tokens.narrow(1, at, count), &cache));
    at += count;
  }
  EXPECT_EQ(cache.length(), 13);
  EXPECT_LT(apart(at::cat(parts, 1), logits), 1e-4);
}

TEST_P(LanguageModels, Greedy_GoesOnAsTransformersDoes) {
  const auto greedy = read_json(folder + "/greedy.json");
  const std::vector<int64_t> expected = greedy["continued"];
  for (const DeviceMap& map : {DeviceMap{{"", "cpu"}}, DeviceMap{{"", "disk"}}}) {
    auto generator = pipeline("text-generation", folder, {.device_map = map});
    for (const bool use_cache : {true, false}) {
      std::string streamed;
      const auto given =
          generator(greedy["prompt"].get<std::string>(),
                    {.max_new_tokens = 24,
                     .use_cache = use_cache,
                     .on_text = [&](size_t, const std::string& piece) { streamed += piece; }});
      EXPECT_EQ(given.tokens, expected);
      EXPECT_EQ(given.text, greedy["text"].get<std::string>());
      EXPECT_EQ(streamed, given.text);
    }
    EXPECT_EQ(generator.time().new_tokens, 24);
    EXPECT_GT(generator.time().tokens_per_second(), 0);
  }
}

TEST_P(LanguageModels, Batch_GivesWhatEachPromptGivesAlone) {
  auto generator = pipeline("text-generation", folder);
  const std::vector<std::string> prompts = {"You", "may reproduce and distribute copies",
                                            "of the Work, 12345", "or"};
  for (const bool sampled : {false, true}) {
    const GenerationOptions options{
        .max_new_tokens = 12, .do_sample = sampled, .seed = 3, .batch_size = 3};
    const auto together = generator(prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerationOptions own = options;
      own.seed = 3 + i;
      EXPECT_EQ(generator(prompts[i], own).tokens, together[i].tokens) << prompts[i];
    }
  }
}

TEST_P(LanguageModels, SavePretrained_ReadsBackTheSame) {
  const TestFolder saved;
  {
    auto generator = pipeline("text-generation", folder, {.device_map = DeviceMap{{"", "disk"}}});
    generator.save_pretrained(saved.path(), "60KB");
  }
  EXPECT_TRUE(std::filesystem::exists(saved.path() + "/model.safetensors.index.json"));
  EXPECT_TRUE(std::filesystem::exists(saved.path() + "/tokenizer.json"));
  auto again = pipeline("text-generation", saved.path());
  const at::NoGradGuard no_grad;
  EXPECT_LT(apart(again.model().forward(tokens), logits), 1e-4);
  EXPECT_EQ(again("You may").tokens, pipeline("text-generation", folder)("You may").tokens);
}

INSTANTIATE_TEST_SUITE_P(, LanguageModels, ::testing::Values("gpt2", "gptj", "llama", "llama3"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace coupler
