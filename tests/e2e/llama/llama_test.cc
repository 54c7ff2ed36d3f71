// The LLaMA example as users run it: over every mesh its losses are those of one process, and the
// text that it makes afterwards is the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

using LlamaWords = std::vector<std::string>;

struct LlamaRun {
  std::vector<double> losses;
  std::string text;  // the line that begins with the prompt; "" if there is none
};

// options: of `coupler launch`; more: of the program, which replace those that all runs have.
Outcome run_llama(const Workplace& here, const LlamaWords& options,
                  const std::map<std::string, std::string>& more = {}) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  std::map<std::string, std::string> own = more;
  own.insert({{"--text", "text.txt"},
              {"--seq", "16"},
              {"--layers", "2"},
              {"--width", "32"},
              {"--heads", "4"},
              {"--batch-size", "4"},
              {"--steps", "12"},
              {"--lr", "0.01"},
              {"--prompt", "in the"},
              {"--new-tokens", "6"}});
  LlamaWords words{"launch", "-o", "backend.timeout=30s", "-o", "launch.threads_per_process=1"};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back(LLAMA_PROGRAM);
  for (const auto& [option, value] : own) words.insert(words.end(), {option, value});
  return here.coupler(words);
}

LlamaRun result_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  LlamaRun result;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("  loss ");
    if (line.rfind("step ", 0) == 0 && at != std::string::npos)
      result.losses.push_back(std::strtod(line.c_str() + at + 7, nullptr));
    if (line.rfind("in the", 0) == 0) result.text = line;
  }
  return result;
}

void expect_losses(const LlamaRun& run, const LlamaRun& alone, const std::string& mesh) {
  ASSERT_EQ(run.losses.size(), alone.losses.size()) << mesh;
  for (size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], alone.losses[i], 1e-3) << mesh << ", step " << i + 1;
}

TEST(Llama, EveryMesh_TrainsAndContinuesAsOneProcess) {
  const Workplace here;
  const LlamaRun alone = result_of(run_llama(here, {"-n", "1"}));
  ASSERT_EQ(alone.losses.size(), 12U);
  EXPECT_LT(alone.losses.back(), 0.8 * alone.losses.front());
  EXPECT_GT(alone.text.size(), std::string("in the").size());
  for (const char* dimension : {"tensor", "context", "pipeline"}) {
    const LlamaRun run = result_of(run_llama(here, {"-n", "2", "-o", "backend.use=gloo_cpu", "-o",
                                                    "parallel." + std::string(dimension) + "=2"}));
    expect_losses(run, alone, dimension);
    // No rank of a pipeline has all layers.
    EXPECT_EQ(run.text, dimension == std::string("pipeline") ? "" : alone.text) << dimension;
  }
}

TEST(Llama, Weights_AreThoseOfTheFolderOverATensorGroup) {
  const Workplace here;
  const std::map<std::string, std::string> folder{{"--weights", MODEL_FIXTURES "/llama"},
                                                  {"--steps", "2"}};
  const LlamaRun alone = result_of(run_llama(here, {"-n", "1"}, folder));
  const LlamaRun random = result_of(run_llama(here, {"-n", "1"}, {{"--steps", "2"}}));
  ASSERT_EQ(alone.losses.size(), 2U);
  EXPECT_GT(std::abs(alone.losses[0] - random.losses.at(0)), 0.01);
  const LlamaWords tensor{"-n", "2", "-o", "backend.use=gloo_cpu", "-o", "parallel.tensor=2"};
  expect_losses(result_of(run_llama(here, tensor, folder)), alone, "tensor");
}

TEST(Llama, MeshInAFile_DividesTheModel) {
  const Workplace here;
  here.write("train.toml", "[backend]\nuse = \"gloo_cpu\"\n\n[parallel]\ntensor = 3\n");
  const Outcome outcome = run_llama(here, {"-n", "3"});
  EXPECT_NE(outcome.exit_code, 0);
  expect_in(outcome.err, "cannot be divided over 3 ranks");
}

TEST(Llama, WrongInput_IsNamed) {
  const Workplace here;
  const struct {
    std::map<std::string, std::string> more;
    std::string message;
  } cases[] = {
      {{{"--text", "nowhere.txt"}}, "the text 'nowhere.txt' cannot be read, or is shorter"},
      {{{"--seq", "4000"}}, "the text 'text.txt' cannot be read, or is shorter"},
      {{{"--width", "30"}}, "does not divide 'hidden_size'"},
      {{{"--heads", "0"}}, "'num_attention_heads'"},
      {{{"--seq", "0"}}, "--seq"},
      {{{"--weights", "no/such/folder"}}, "no/such/folder"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = run_llama(here, {"-n", "1"}, wrong.more);
    EXPECT_NE(outcome.exit_code, 0) << wrong.message;
    expect_in(outcome.err, wrong.message);
  }
}

}  // namespace
}  // namespace coupler
