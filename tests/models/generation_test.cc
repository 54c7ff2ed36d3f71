// Sampling against transformers' own, other people's checkpoints, and the errors for wrong input.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <coupler/big_model.h>
#include <coupler/state_dict.h>
#include <coupler/text.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "fixture.h"

namespace coupler {
namespace {

TEST(Sampling, Probabilities_AreTransformers) {
  const auto reference = SafeTensors::open(fixture("samplers.safetensors"));
  int compared = 0;
  for (const std::string& name : reference.names()) {
    if (name == "scores") continue;
    GenerationOptions options{.do_sample = true};
    std::istringstream(name) >> options.temperature >> options.top_k >> options.top_p;
    const at::Tensor ours = sampling_probabilities(reference.tensor("scores"), options);
    EXPECT_LT(ours.sub(reference.tensor(name)).abs().max().item<double>(), 1e-6) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

TEST(Sampling, Seed_MakesRunsEqual) {
  auto generator = pipeline("text-generation", fixture("gpt2"));
  GenerationOptions options{
      .max_new_tokens = 16, .do_sample = true, .temperature = 2.0, .top_k = 0, .seed = 1};
  const auto first = generator("The License", options).tokens;
  EXPECT_EQ(generator("The License", options).tokens, first);
  options.seed = 2;
  EXPECT_NE(generator("The License", options).tokens, first);
  options.top_k = 1;  // only the most likely token is left
  EXPECT_EQ(generator("The License", options).tokens,
            generator("The License", {.max_new_tokens = 16}).tokens);
}

TEST(Generation, EndToken_EndsItsTextOnly) {
  auto generator = pipeline("text-generation", fixture("gpt2"));
  const std::vector<std::string> prompts = {"The License grants", "You may reproduce"};
  const auto whole = generator(prompts, {.max_new_tokens = 20});
  const int64_t end = whole[0].tokens[3];
  const auto given = generator(prompts, {.max_new_tokens = 20, .end_tokens = {end}});
  EXPECT_TRUE(given[0].ended);
  EXPECT_LE(given[0].tokens.size(), 4U);
  EXPECT_EQ(given[0].tokens.back(), end);
  EXPECT_GT(given[1].tokens.size(), given[0].tokens.size());
}

TEST(Generation, Context_EndsTexts) {
  auto generator = pipeline("text-generation", fixture("gpt2"));
  const auto given = generator.continue_tokens({std::vector<int64_t>(60, 5)},
                                               {.max_new_tokens = 50, .end_tokens = {-1}});
  EXPECT_EQ(given[0].tokens.size(), 4U);
  EXPECT_FALSE(given[0].ended);
}

// The first GPT-2 checkpoint has no head and no prefix, and stores masks alongside the weights.
TEST(Checkpoints, WithoutPrefixAndWithMasks_AreRead) {
  const TestFolder folder;
  folder.copy("gpt2");
  {
    auto generator = pipeline("text-generation", fixture("gpt2"));
    struct Bare : torch::nn::Module {};
    Bare bare;
    for (const auto& item : generator.model().named_parameters()) {
      std::string name = item.key();
      if (name.starts_with("lm_head")) continue;
      name = name.substr(std::string("transformer.").size());
      for (char& character : name) character = character == '.' ? '/' : character;
      bare.register_parameter(name, item.value().detach().clone());
    }
    const auto config = ModelConfig::open(fixture("gpt2"));
    save_pretrained(bare, config, folder.path());
  }
  // LibTorch does not allow dots in names, so the header is renamed in place.
  const std::string path = folder.path() + "/model.safetensors";
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = text.str();
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  for (size_t i = 8; i < 8 + size; ++i) bytes[i] = bytes[i] == '/' ? '.' : bytes[i];
  std::ofstream(path, std::ios::binary) << bytes;

  const auto reference = SafeTensors::open(fixture("gpt2/reference.safetensors"));
  auto generator = pipeline("text-generation", folder.path());
  const at::NoGradGuard no_grad;
  EXPECT_LT(generator.model()
                .forward(reference.tensor("tokens"))
                .sub(reference.tensor("logits"))
                .abs()
                .max()
                .item<double>(),
            1e-4);
}

TEST(Names, OlderCheckpoints_LoseWhatIsComputed) {
  const auto model = make_language_model(ModelConfig::open(fixture("gpt2")));
  const auto names = checkpoint_names(*model);
  EXPECT_EQ(names("h.0.attn.bias"), "");
  EXPECT_EQ(names("transformer.h.0.attn.masked_bias"), "");
  EXPECT_EQ(names("h.0.attn.c_attn.bias"), "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(names("lm_head.weight"), "lm_head.weight");
}

TEST(Pipeline, WrongFolder_IsRefusedWithWhatToDo) {
  expect_message([] { (void)pipeline("text-to-image", fixture("gpt2")); },
                 {"task 'text-to-image' is not supported", "text-generation"});
  const TestFolder empty;
  expect_message([&] { (void)pipeline("text-generation", empty.path()); },
                 {"config.json cannot be read", "save_pretrained"});
  const struct {
    const char* key;
    nlohmann::json value;
    std::vector<std::string> message;
  } cases[] = {
      {"/model_type", "mamba", {"'mamba' is not supported; supported: gemma, gemma2"}},
      {"/model_type", nullptr, {"config.json: 'model_type' is missing"}},
      {"/n_head", 5, {"'n_head' does not divide 'n_embd'"}},
      {"/n_layer", "two", {"'n_layer' must be a positive integer, not \"two\""}},
      {"/n_layer", 3, {"transformer.h.2", "does not match the model"}},
      {"/activation_function", "mish", {"activation 'mish' is not supported", "gelu_new"}},
      {"/scale_attn_by_inverse_layer_idx", true, {"scale_attn_by_inverse_layer_idx"}},
      {"/dtype", "float4", {"dtype 'float4' is not supported", "options.dtype"}},
  };
  for (const auto& wrong : cases) {
    const TestFolder folder;
    folder.copy("gpt2");
    folder.set("config.json", wrong.key, wrong.value);
    expect_message([&] { (void)pipeline("text-generation", folder.path()); }, wrong.message);
  }
  const TestFolder llama;
  llama.copy("llama3");
  llama.set("config.json", "/rope_parameters/rope_type", "yarn");
  expect_message([&] { (void)pipeline("text-generation", llama.path()); },
                 {"rope_type 'yarn' is not supported", "llama3"});
}

TEST(Pipeline, DtypeThatTheDeviceCannotCompute_IsRefusedWithThoseItCan) {
  for (const auto type : {at::kFloat8_e4m3fn, at::kInt}) {
    expect_message([&] { (void)pipeline("text-generation", fixture("gpt2"), {.dtype = type}); },
                   {"cannot compute a transformer in", "set options.dtype to one of float32"});
  }
}

TEST(Pipeline, WrongPromptsAndOptions_AreRefusedWithWhatToDo) {
  auto generator = pipeline("text-generation", fixture("gpt2"));
  const auto refused = [&](const std::vector<int64_t>& prompt, const GenerationOptions& options,
                           const std::vector<std::string>& message) {
    expect_message([&] { (void)generator.continue_tokens({prompt}, options); }, message);
  };
  refused(std::vector<int64_t>(64, 1), {},
          {"has 64 tokens, but the model's context is 64", "shorten the prompt"});
  refused({}, {}, {"text 0 has no tokens"});
  refused({500}, {}, {"token 500, but the model has 500", "tokenizer of this model"});
  refused({1}, {.max_new_tokens = 0}, {"max_new_tokens is 0"});
  refused({1}, {.do_sample = true, .temperature = 0}, {"temperature is 0", "do_sample = false"});
  refused({1}, {.do_sample = true, .top_k = -1}, {"top_k is -1"});
  refused({1}, {.do_sample = true, .top_p = 1.5}, {"top_p is 1.5"});
  const at::NoGradGuard no_grad;
  expect_message(
      [&] {
        generator.model().forward(at::zeros({1, 65}, at::kLong));
      },
      {"65 tokens exceed the model's context of 64"});
  expect_message([&] { generator.model().forward(at::zeros({3}, at::kLong)); },
                 {"int64 tokens of shape [batch, positions]"});
  const TestFolder without;
  without.copy("gpt2");
  std::filesystem::remove(without.path() + "/tokenizer.json");
  auto mute = pipeline("text-generation", without.path());
  expect_message([&] { mute("Hello"); }, {"has no tokenizer.json"});
  EXPECT_EQ(mute.continue_tokens({{5, 6}}, {.max_new_tokens = 3})[0].tokens.size(), 3U);
}

TEST(SavePretrained, Transformers_OpensTheFolder) {
  const char* const python = std::getenv("COUPLER_TEST_PYTHON");
  if (python == nullptr ||
      std::system(fmt::format("{} -c 'import transformers' 2>/dev/null", python).c_str()) != 0)
    GTEST_SKIP() << "COUPLER_TEST_PYTHON does not name a Python with transformers";
  for (const char* name : {"gpt2", "gptj", "llama", "llama3"}) {
    const TestFolder saved;
    auto generator = pipeline("text-generation", fixture(name));
    generator.save_pretrained(saved.path());
    EXPECT_EQ(std::system(fmt::format("{} {}/open_saved.py {} {}", python, MODEL_TESTS,
                                      saved.path(), fixture(name))
                              .c_str()),
              0)
        << name;
  }
}

}  // namespace
}  // namespace coupler
