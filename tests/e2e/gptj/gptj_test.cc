// The GPT-J example against what transformers says of the same weights, which lie in two files of
// torch.save's with an index of the older kind.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

std::string expected() {
  std::ifstream in(GPTJ_FIXTURE "/expected.txt");
  return {std::istreambuf_iterator<char>(in), {}};
}

Outcome run(const Workplace& here, const std::vector<std::string>& more,
            const std::string& checkpoint = GPTJ_FIXTURE) {
  std::vector<std::string> words{"launch",   "-n",       "1",         GPTJ_PROGRAM, "--checkpoint",
                                 checkpoint, "--tokens", "3,1,4,1,5", "--generate", "12"};
  words.insert(words.end(), more.begin(), more.end());
  return here.coupler(words);
}

std::string last_line(const Outcome& outcome) {
  std::string text = outcome.out;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const size_t line = text.rfind('\n');
  return (line == std::string::npos ? text : text.substr(line + 1)) + "\n";
}

TEST(Gptj, EveryMap_GoesOnAsTransformersDoes) {
  const Workplace here;
  here.write("disk.json", R"({"": "disk"})");
  here.write("mixed.json", R"({"transformer.wte": "cpu", "transformer.drop": "cpu",
                               "transformer.h.0": "disk", "transformer.h.1": "cpu",
                               "transformer.ln_f": "disk", "lm_head": "disk"})");
  for (const char* map : {"auto", "sequential", "optimal", "disk.json", "mixed.json"}) {
    const Outcome outcome = run(here, {"--device-map", map});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(last_line(outcome), expected()) << map;
  }
}

TEST(Gptj, PrintMap_ShowsWhereEachPartLies) {
  const Workplace here;
  here.write("mixed.json", R"({"transformer": "cpu", "lm_head": "disk"})");
  const Outcome outcome = run(here, {"--device-map", "mixed.json", "--print-map"});
  for (const char* text : {"transformer", "lm_head", "disk"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << outcome.out;
  }
}

TEST(Gptj, WrongInput_EndsWithItsMessage) {
  const Workplace here;
  here.write("map.json", R"({"transformer": "cpu"})");
  const struct {
    std::vector<std::string> words;
    std::string checkpoint;
    std::string message;
  } cases[] = {
      {{}, "nowhere", "nowhere/config.json cannot be read"},
      {{"--device-map", "map.json"}, GPTJ_FIXTURE, "lm_head"},
      {{"--device-map", "best"}, GPTJ_FIXTURE, "'best'"},
      {{"--max-memory", "cpu=1KiB"}, GPTJ_FIXTURE, "max_memory"},
      {{"--max-memory", "cpu=some"}, GPTJ_FIXTURE, "some"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = run(here, wrong.words, wrong.checkpoint);
    EXPECT_NE(outcome.exit_code, 0) << wrong.message;
    EXPECT_NE(outcome.err.find(wrong.message), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace coupler
