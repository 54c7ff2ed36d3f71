#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "run_program.h"
#include "words.h"

namespace coupler {
namespace {

Words gpt(const Workplace& here) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  return {"--",      GPT_PROGRAM, "--text", "text.txt", "--width",      "256", "--layers", "4",
          "--heads", "4",         "--seq",  "32",       "--batch-size", "2",   "--steps",  "4"};
}

bool err_says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

TEST(EstimateCommand, Program_IsEstimatedAsConfigured) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"estimate", "--world", "4", "-o", "backend.use=deepspeed_like", "-o",
                         "backend.deepspeed_like.stage=1", "-o",
                         "backend.deepspeed_like.base=gloo_cpu", "--limit", "4GiB"},
                        gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* text :
       {"deepspeed_like, stage 1", "4 processes", "parameters", "gradients", "optimizer state",
        "activations", "the process itself", "It fits within 4.0 GiB."}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(EstimateCommand, All_ListsEveryBackendStageAndPrecision) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"estimate", "--world", "2", "--all", "--json"}, gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out)["estimates"];
  EXPECT_EQ(rows.size(), 9u * 4u);
  const auto state = [&](const std::string& setting) {
    for (const auto& row : rows) {
      if (row["setting"] == setting) return row["most_bytes"]["optimizer"].get<double>();
    }
    return -1.0;
  };
  EXPECT_NEAR(state("ZeRO stage 1"), state("replicate") / 2, 0.02 * state("replicate"));
  EXPECT_LT(state("ZeRO stage 3, all on disk"), 1 << 20);  // parameters too small to shard
}

TEST(EstimateCommand, Recommend_PrintsAConfigurationThatIsRight) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"config", "recommend", "--limit", "4GiB", "--world", "2"}, gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("use = \"auto\""), std::string::npos) << outcome.out;
  here.write("train.toml", outcome.out);
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
  const Outcome none =
      here.coupler(with({"config", "recommend", "--limit", "20MiB", "--world", "2"}, gpt(here)));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(
      err_says(none, "no setting fits within 20.0 MiB per rank with 2 processes: the smallest, "))
      << none.err;
}

TEST(EstimateCommand, ModelConfiguration_NeedsNoWeights) {
  const Workplace here;
  here.write("config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257})");
  const Outcome outcome = here.coupler({"estimate", "--world", "2", "config.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"gpt2: 124439808 parameters; the largest layer, transformer.h.0, has "
                           "7087872",
                           "474.7 MiB", "ZeRO stage 3", "Activations are not counted"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(EstimateCommand, NameOnTheHub_IsReadFromTheCache) {
  const Workplace here;
  const std::string commit(40, 'a');
  const auto model = here.path() / "hf/hub/models--org--small";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots" / commit);
  here.write("hf/hub/models--org--small/refs/main", commit);
  here.write("hf/hub/models--org--small/snapshots/" + commit + "/config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257, "n_head": 12})");
  const std::map<std::string, std::string> variables = {{"HF_HOME", (here.path() / "hf").string()},
                                                        {"HF_HUB_OFFLINE", "1"}};
  const Outcome found = here.coupler({"estimate", "org/small"}, variables);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.out.find("124439808 parameters"), std::string::npos) << found.out;
  const Outcome none = here.coupler({"estimate", "org/none"}, variables);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_TRUE(
      err_says(none, "there is no folder 'org/none', and HF_HUB_OFFLINE allows no download"))
      << none.err;
  const Outcome typo = here.coupler({"estimate", "no.safetensors"}, variables);
  EXPECT_TRUE(err_says(typo, "no.safetensors does not exist")) << typo.err;
}

TEST(EstimateCommand, WrongInput_EndsWithItsMessage) {
  const Workplace here;
  here.write("config.json", R"({"model_type": "mamba"})");
  const struct {
    Words words;
    int code;
    std::string message;
  } cases[] = {
      {{"estimate", "--jsn", "x"}, 2, "unknown argument '--jsn'; did you mean '--json'?"},
      {{"estimate", "--world", "0", "x"}, 2, "--world is '0' but must be a whole number"},
      {{"estimate", "--world"}, 2, "--world needs a value"},
      {{"estimate", "--limit", "4gb", "x"}, 2, "'4gb' is not a size"},
      {{"estimate", "config.json"}, 1, "model_type is 'mamba'; known are bert"},
      {{"estimate", "missing.json"}, 1, "cannot open missing.json: No such file"},
      {{"estimate", "--", "./no-such-program"}, 2, "no-such-program"},
      {{"estimate", "--", "true"}, 2, "'true' ended without a dry run of two optimizer steps"},
      {{"estimate", "--", "false"}, 1, "'false' ended with code 1 in its dry run"},
      {{"config", "recommend", "--", "true"}, 2, "--limit SIZE is missing"},
      {{"config", "check", "-o", "memory.limit=4gb"}, 2, "'4gb' is not a size"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = here.coupler(wrong.words);
    EXPECT_EQ(outcome.exit_code, wrong.code) << wrong.message << "\n" << outcome.err;
    EXPECT_TRUE(err_says(outcome, wrong.message)) << wrong.message << " in\n" << outcome.err;
  }
}

TEST(EstimateCommand, DryRunOfSeveralProcesses_IsRefused) {
  const Workplace here;
  Words words = gpt(here);
  words.erase(words.begin());
  const Outcome outcome =
      here.coupler(with({"launch", "-n", "2", "-o", "backend.use=gloo_cpu"}, words),
                   {{"COUPLER_ESTIMATE", "log"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(err_says(outcome, "COUPLER_ESTIMATE is set in a job of 2 processes")) << outcome.err;
}

}  // namespace
}  // namespace coupler
