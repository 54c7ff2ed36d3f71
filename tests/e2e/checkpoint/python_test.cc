// Weights that go from Coupler to PyTorch and Accelerate and back. Skipped if the Python of
// COUPLER_TEST_PYTHON (default python3) lacks these.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

using Arguments = std::vector<std::string>;

std::string python() {
  const char* named = std::getenv("COUPLER_TEST_PYTHON");
  return named == nullptr ? "python3" : named;
}

double final_loss(const std::string& text) {
  const std::string words = "final loss: ";
  const size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

class Python : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string ask = python() + " -c 'import torch, accelerate, safetensors' 2> /dev/null";
    if (std::system(ask.c_str()) != 0) {
      GTEST_SKIP() << python() << " has no torch, accelerate and safetensors (pip install torch "
                   << "accelerate safetensors; COUPLER_TEST_PYTHON names another interpreter)";
    }
  }
  std::string path(const std::string& name) const { return (here_.path() / name).string(); }
  // The loss that the script prints.
  double exchange(const std::string& what, const std::string& name) const {
    const std::string command = "timeout 100 " + python() +
                                " " COUPLER_SOURCE_DIR
                                "/tests/e2e/checkpoint/exchange_weights.py " +
                                what + " " DIGITS_CSV " " + path(name) + " 2>&1";
    std::string text;
    FILE* pipe = ::popen(command.c_str(), "re");
    char buffer[4096];
    for (size_t size = 0; (size = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      text.append(buffer, size);
    }
    EXPECT_EQ(::pclose(pipe), 0) << text;
    return final_loss(text);
  }
  void run(const Arguments& arguments) const {
    const Outcome outcome = here_.coupler(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  double train(Arguments launch, const Arguments& more) const {
    launch.insert(launch.begin(), "launch");
    launch.insert(launch.end(), {DIGITS_PROGRAM, "--epochs", "1"});
    launch.insert(launch.end(), more.begin(), more.end());
    const Outcome outcome = here_.coupler(launch);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return final_loss(outcome.out);
  }

  const Workplace here_{};
};

TEST_F(Python, ReadsACheckpointsModel) {
  const double loss = train({"-n", "1", "-o", "checkpoint.dir=saved"}, {});
  EXPECT_NEAR(exchange("read", "saved/checkpoint_0/model.safetensors"), loss, 1e-5 * loss);
}

TEST_F(Python, ReadsTheMergedWeightsOfADividedModel_OneFileOrShards) {
  const double loss = train({"-n", "2", "-o", "backend.use=fsdp", "-o",
                             "backend.fsdp.base=gloo_cpu", "-o", "checkpoint.dir=saved"},
                            {});
  run({"merge-weights", "saved", "one.safetensors"});
  run({"merge-weights", "saved", "shards", "--max-shard-size", "20KB"});
  EXPECT_TRUE(std::filesystem::exists(path("shards/model.safetensors.index.json")));
  EXPECT_NEAR(exchange("read", "one.safetensors"), loss, 1e-5 * loss);
  EXPECT_NEAR(exchange("read", "shards"), loss, 1e-5 * loss);
}

TEST_F(Python, ReadsADividedModelSavedIn16Bits) {
  run({"launch", "-n", "2", "-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu",
       TRAINING_CHECKS, "--expect", path("saved"), "weights_for_python"});
  const double whole = exchange("read", "saved/fp32");
  EXPECT_NEAR(exchange("read_bf16", "saved/bf16"), whole, 0.02 * whole);
}

TEST_F(Python, WhatItWrites_IsConverted) {
  std::filesystem::create_directory(path("theirs"));
  const double theirs = exchange("write", "theirs");
  const double expected = train({"-n", "1"}, {"--init", path("theirs/one.safetensors")});
  for (const std::string layout : {"one.safetensors", "shards", "bin", "state"}) {
    const std::string converted = path("from_" + layout + ".safetensors");
    run({"checkpoint", "convert", path("theirs/" + layout), converted});
    EXPECT_EQ(train({"-n", "1"}, {"--init", converted}), expected) << layout;
    EXPECT_EQ(exchange("read", "from_" + layout + ".safetensors"), theirs) << layout;
  }
}

}  // namespace
}  // namespace coupler
