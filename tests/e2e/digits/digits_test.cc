// The digits example as users run it: the same result for every number of processes over every
// transport, and errors for what cannot work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

using Arguments = std::vector<std::string>;

// The -o options of a transport by name, or of "fsdp/mpi", "deepspeed_like/gloo_cpu".
Arguments options_of(const std::string& backend) {
  const size_t slash = backend.find('/');
  const std::string use = backend.substr(0, slash);
  Arguments result{"-o", "backend.use=" + use};
  if (slash != std::string::npos) {
    result.insert(result.end(), {"-o", "backend." + use + ".base=" + backend.substr(slash + 1)});
  }
  return result;
}

Outcome launch(const Workplace& here, int processes, const std::string& backend,
               Arguments options) {
  Arguments arguments{"launch", "-n", std::to_string(processes)};
  for (const std::string& option : options_of(backend)) arguments.push_back(option);
  arguments.emplace_back(DIGITS_PROGRAM);
  arguments.insert(arguments.end(), options.begin(), options.end());
  return here.coupler(arguments);
}

// The number after "name: " in the last lines; fails the test if there is none.
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
  for (const int world_size : {2, 4}) {
    const Outcome several = launch(here, world_size, GetParam(), {});
    EXPECT_LE(std::abs(number_of(several, "final loss") - loss), 1e-6 * loss)
        << world_size << " ranks";
    EXPECT_GE(number_of(several, "test accuracy"), 0.87) << world_size << " ranks";
  }
}

// One rank prints each line once, whatever the number of ranks.
void expect_last_lines(const Outcome& outcome) {
  std::istringstream lines(outcome.out);
  std::string memory, loss, accuracy, more;
  std::getline(lines, memory);
  std::getline(lines, loss);
  std::getline(lines, accuracy);
  EXPECT_TRUE(
      std::regex_match(memory, std::regex("memory per rank: peak [1-9]\\d*, [1-9]\\d* MiB")))
      << memory;
  EXPECT_EQ(loss.substr(0, 12), "final loss: ");
  EXPECT_EQ(accuracy.substr(0, 15), "test accuracy: ");
  EXPECT_FALSE(std::getline(lines, more)) << more;
}

TEST_P(DigitsOver, LastLines_AreMemoryLossAndAccuracy) {
  const Workplace here;
  expect_last_lines(launch(here, 2, GetParam(), {"--epochs", "1", "--no-shuffle"}));
}

TEST_P(DigitsOver, BatchThatDoesNotDivide_IsRefusedWithBothNumbers) {
  const Workplace here;
  const Outcome outcome = launch(here, 2, GetParam(), {"--batch-size", "33"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("33"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("2 processes"), std::string::npos) << outcome.err;
}

std::string name_of(const ::testing::TestParamInfo<const char*>& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Transports, DigitsOver, ::testing::Values("gloo_cpu", "mpi", "shm"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Full, DigitsOver,
                         ::testing::Values("fsdp/gloo_cpu", "fsdp/mpi", "deepspeed_like/gloo_cpu",
                                           "deepspeed_like/mpi"),
                         name_of);

class DigitsDividedBy : public ::testing::TestWithParam<const char*> {};

TEST_P(DigitsDividedBy, TwoRanks_EndInTheLossOfWholeModels) {
  const Workplace here;
  const Arguments options{"--epochs", "2"};
  const Outcome divided = launch(here, 2, GetParam(), options);
  expect_last_lines(divided);
  const double loss = number_of(launch(here, 2, "gloo_cpu", options), "final loss");
  EXPECT_LE(std::abs(number_of(divided, "final loss") - loss), 1e-5 * loss);
}

// The loss is printed with all its digits.
TEST_P(DigitsDividedBy, OptimizerInBackward_EndsInTheSameBits) {
  const Workplace here;
  const Arguments options{"--epochs", "2", "-o", "training.bucket_cap_mb=0.02"};
  Arguments in_backward = options;
  in_backward.insert(in_backward.end(), {"-o", "training.optimizer_in_backward=true"});
  for (const char* backend : {GetParam(), "gloo_cpu"}) {
    EXPECT_EQ(number_of(launch(here, 2, backend, in_backward), "final loss"),
              number_of(launch(here, 2, backend, options), "final loss"))
        << backend;
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, DigitsDividedBy,
                         ::testing::Values("fsdp/gloo_cpu", "fsdp/mpi", "deepspeed_like/gloo_cpu",
                                           "deepspeed_like/mpi"),
                         name_of);

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
