// The gan example as users run it: two alternating models learn under every backend.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "run_program.h"

namespace coupler {
namespace {

using Arguments = std::vector<std::string>;

double gan_number_of(const Outcome& outcome, const std::string& name) {
  const size_t at = outcome.out.find(name + ": ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no '" << name << "' in\n" << outcome.out << outcome.err;
    return std::nan("");
  }
  return std::strtod(outcome.out.c_str() + at + name.size() + 2, nullptr);
}

void expect_learns(const Arguments& options) {
  const Workplace here;
  Arguments arguments{"launch"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {GAN_PROGRAM, "--epochs", "10"});
  const Outcome outcome = here.coupler(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(gan_number_of(outcome, "distance after"),
            0.5 * gan_number_of(outcome, "distance before"));
}

TEST(Gan, OneProcess_Learns) { expect_learns({"-n", "1"}); }

TEST(Gan, WindowsOfThree_Learns) {
  expect_learns({"-n", "1", "-o", "training.gradient_accumulation_steps=3"});
}

class GanOver : public ::testing::TestWithParam<const char*> {};

TEST_P(GanOver, TwoProcesses_Learn) {
  const std::string backend = GetParam();
  expect_learns({"-n", "2", "-o", "backend.use=" + backend});
}

INSTANTIATE_TEST_SUITE_P(Backends, GanOver,
                         ::testing::Values("gloo_cpu", "mpi", "fsdp", "deepspeed_like"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace coupler
