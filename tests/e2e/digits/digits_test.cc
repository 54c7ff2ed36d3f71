// The digits example as its users run it: the same result for every number of processes over every
// transport, and a message for what cannot work.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

using Arguments = std::vector<std::string>;

Outcome launch(const Workplace& here, int processes, const std::string& backend,
               Arguments options) {
  Arguments arguments{
      "launch", "-n", std::to_string(processes), "-o", "backend.use=" + backend, DIGITS_PROGRAM};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return here.coupler(arguments);
}

// The number behind "name: " in the last lines; the test fails where there is none.
double number_of(const Outcome& outcome, const std::string& name) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t at = outcome.out.find(name + ": ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no '" << name << "' in\n" << outcome.out;
    return std::nan("");
  }
  return std::strtod(outcome.out.c_str() + at + name.size() + 2, nullptr);
}

class DigitsOver : public ::testing::TestWithParam<const char*> {};

TEST_P(DigitsOver, EveryWorld_EndsInTheSameLoss) {
  const Workplace here;
  const Outcome alone = launch(here, 1, GetParam(), {});
  const double loss = number_of(alone, "final loss");
  EXPECT_GE(number_of(alone, "test accuracy"), 0.87);
  for (const int world : {2, 4}) {
    const Outcome several = launch(here, world, GetParam(), {});
    EXPECT_LE(std::abs(number_of(several, "final loss") - loss), 1e-6 * loss) << world << " ranks";
    EXPECT_GE(number_of(several, "test accuracy"), 0.87) << world << " ranks";
  }
}

// One plain line each from one rank, whatever the number of ranks.
TEST_P(DigitsOver, LastLines_AreLossAndAccuracy) {
  const Workplace here;
  const Outcome outcome = launch(here, 2, GetParam(), {"--epochs", "1", "--no-shuffle"});
  std::istringstream lines(outcome.out);
  std::string first, second, third;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(first.substr(0, 12), "final loss: ");
  EXPECT_EQ(second.substr(0, 15), "test accuracy: ");
  EXPECT_FALSE(std::getline(lines, third)) << third;
}

TEST_P(DigitsOver, BatchThatDoesNotDivide_IsRefusedWithBothNumbers) {
  const Workplace here;
  const Outcome outcome = launch(here, 2, GetParam(), {"--batch-size", "33"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("33"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("2 processes"), std::string::npos) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(Transports, DigitsOver, ::testing::Values("gloo_cpu", "mpi"),
                         [](const auto& instance) { return std::string(instance.param); });

// A .safetensors file with the network's parameters, every value the same small number.
std::string initial_values(int64_t hidden) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"fc1.weight", {hidden, 64}},
      {"fc1.bias", {hidden}},
      {"fc2.weight", {10, hidden}},
      {"fc2.bias", {10}}};
  std::ostringstream header;
  header << '{';
  int64_t offset = 0;
  for (const auto& [name, shape] : tensors) {
    int64_t count = 1;
    header << (offset == 0 ? "" : ",") << '"' << name << R"(":{"dtype":"F32","shape":[)";
    for (size_t i = 0; i < shape.size(); ++i) {
      header << (i == 0 ? "" : ",") << shape[i];
      count *= shape[i];
    }
    header << R"(],"data_offsets":[)" << offset << ',' << offset + 4 * count << "]}";
    offset += 4 * count;
  }
  header << '}';
  const std::string text = header.str();
  const uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += text;
  const float value = 0.01F;
  for (int64_t i = 0; i < offset / 4; ++i) {
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return file;
}

TEST(Digits, InitialValuesOfAFile_ReplaceTheSeeds) {
  const Workplace here;
  here.write("init.safetensors", initial_values(128));
  const Arguments options{"--epochs", "1", "--no-shuffle", "--init", "init.safetensors"};
  Arguments other_seed = options;
  other_seed.insert(other_seed.end(), {"--seed", "5"});
  const double loss = number_of(launch(here, 1, "auto", options), "final loss");
  EXPECT_EQ(loss, number_of(launch(here, 1, "auto", other_seed), "final loss"));
  EXPECT_LE(std::abs(loss - number_of(launch(here, 2, "gloo_cpu", options), "final loss")),
            1e-6 * loss);
}

TEST(Digits, InitialValuesOfAnotherShape_AreRefusedByName) {
  const Workplace here;
  here.write("init.safetensors", initial_values(64));
  const Outcome outcome = launch(here, 1, "auto", {"--init", "init.safetensors"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("'fc1.weight'"), std::string::npos) << outcome.err;
}

TEST(Digits, UnknownOption_IsAUsageError) {
  const Workplace here;
  const Outcome outcome = launch(here, 1, "auto", {"--epoch", "3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--epoch"), std::string::npos) << outcome.err;
}

TEST(Digits, MistypedKeyInTheFile_IsNamedWithItsPlace) {
  const Workplace here;
  here.write("train.toml", "[backend]\nuse = \"auto\"\ntimeut = \"5s\"\n");
  const Outcome outcome = launch(here, 1, "auto", {});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("train.toml:3:1"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("backend.timeout"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace coupler
