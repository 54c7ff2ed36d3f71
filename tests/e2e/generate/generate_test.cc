// Compares the generate example with the output of transformers for the same folders: a GPT-J whose
// weights are in two torch.save files with an index of the older kind, and GPT-2 and LLaMA with
// tokenizers.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

std::string expected() { return text_of(GPTJ_FIXTURE "/expected.txt"); }

Outcome run_generate(const Workplace& here, const std::vector<std::string>& more,
                     const std::string& checkpoint = GPTJ_FIXTURE) {
  std::vector<std::string> words{"launch",   "-n",       "1",         GENERATE_PROGRAM,   "--model",
                                 checkpoint, "--tokens", "3,1,4,1,5", "--max-new-tokens", "12"};
  words.insert(words.end(), more.begin(), more.end());
  return here.coupler(words);
}

std::string last_line(const Outcome& outcome) {
  std::string text = outcome.out;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const size_t line = text.rfind('\n');
  return (line == std::string::npos ? text : text.substr(line + 1)) + "\n";
}

TEST(Generate, EveryMap_GoesOnAsTransformersDoes) {
  const Workplace here;
  here.write("disk.json", R"({"": "disk"})");
  here.write("mixed.json",
             R"({"transformer.wte": "cpu", "transformer.h.0": "disk", "transformer.h.1": "cpu",
                               "transformer.ln_f": "disk", "lm_head": "disk"})");
  for (const char* map : {"auto", "sequential", "optimal", "disk.json", "mixed.json"}) {
    const Outcome outcome = run_generate(here, {"--device-map", map});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(last_line(outcome), expected()) << map;
  }
}

TEST(Generate, PrintMap_ShowsWhereEachPartLies) {
  const Workplace here;
  here.write("mixed.json", R"({"transformer": "cpu", "lm_head": "disk"})");
  const Outcome outcome = run_generate(here, {"--device-map", "mixed.json", "--print-map"});
  for (const char* text : {"transformer", "lm_head", "disk"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << outcome.out;
  }
}

TEST(Generate, WrongInput_EndsWithItsMessage) {
  const Workplace here;
  here.write("map.json", R"({"transformer": "cpu"})");
  const struct {
    std::vector<std::string> words;
    std::string checkpoint;
    std::string message;
  } cases[] = {
      {{}, "./nowhere", "nowhere/config.json cannot be read"},
      {{"--device-map", "map.json"}, GPTJ_FIXTURE, "lm_head"},
      {{"--device-map", "best"}, GPTJ_FIXTURE, "'best'"},
      {{"--max-memory", "cpu=1KiB"}, GPTJ_FIXTURE, "max_memory"},
      {{"--max-memory", "cpu=some"}, GPTJ_FIXTURE, "some"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = run_generate(here, wrong.words, wrong.checkpoint);
    EXPECT_NE(outcome.exit_code, 0) << wrong.message;
    EXPECT_NE(outcome.err.find(wrong.message), std::string::npos) << outcome.err;
  }
}

// The output of transformers: the value of a key of greedy.json.
std::string greedy_text(const std::string& model, const std::string& key) {
  const std::string path = MODEL_FIXTURES "/" + model + "/greedy.json";
  return nlohmann::json::parse(text_of(path)).at(key);
}

TEST(Generate, OnePrompt_StreamsItsTextAndTellsTheRate) {
  const Workplace here;
  const Outcome outcome =
      here.coupler({"launch", "-n", "1", GENERATE_PROGRAM, "--model", MODEL_FIXTURES "/gpt2",
                    "--prompt", greedy_text("gpt2", "prompt"), "--max-new-tokens", "24"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, greedy_text("gpt2", "prompt") + greedy_text("gpt2", "text") + "\n");
  EXPECT_NE(outcome.err.find(" tokens/s"), std::string::npos) << outcome.err;
}

// Greedy or sampled, on one process or two: the same answers in the order of the prompts.
TEST(Generate, ManyPrompts_AreDividedAmongProcesses) {
  const Workplace here;
  here.write("prompts.txt", "The License\nYou may reproduce\nand\n\ndistribute copies\nof\n");
  for (const bool drawn : {false, true}) {
    std::string first;
    for (const char* processes : {"1", "2"}) {
      std::vector<std::string> words{"launch",
                                     "-n",
                                     processes,
                                     "-o",
                                     "backend.use=gloo_cpu",
                                     GENERATE_PROGRAM,
                                     "--model",
                                     MODEL_FIXTURES "/gpt2",
                                     "--prompts",
                                     "prompts.txt",
                                     "--max-new-tokens",
                                     "8"};
      if (drawn) words.insert(words.end(), {"--sample", "--seed", "4", "--temperature", "2"});
      const Outcome outcome = here.coupler(words);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      if (first.empty()) first = outcome.out;
      EXPECT_EQ(outcome.out, first);
    }
    EXPECT_EQ(first.rfind("The License", 0), 0U) << first;
    EXPECT_NE(first.find("\nof"), std::string::npos) << first;
  }
}

TEST(Generate, Save_WritesAFolderThatGoesOnTheSameWay) {
  const Workplace here;
  const auto continued = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> words{"launch",  "-n",  "1",        GENERATE_PROGRAM,
                                   "--model", model, "--prompt", "You may reproduce"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string before = continued(MODEL_FIXTURES "/llama", {"--save", "saved"});
  EXPECT_EQ(continued("saved", {}), before);
}

}  // namespace
}  // namespace coupler
