// The digits example under other launchers, directly and through `coupler launch`: the loss equals
// that of one process, whatever started the ranks.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <regex>
#include <string>

#include "slurm_cluster.h"
#include "temporary_folder.h"

namespace coupler {
namespace {

using testing_launch::SlurmCluster;

const std::string kDigits = std::string(COUPLER_DIGITS) + " --epochs 2 --batch-size 32";
const std::string kOverGloo = kDigits + " -o backend.use=gloo_cpu";
const std::string kLaunch = COUPLER_BINARY_DIR "/bin/coupler launch -o backend.use=gloo_cpu -n 2 ";

std::string output_of(const std::string& command) {
  const TemporaryFolder folder("coupler-launchers");  // torchrun does not remove its files
  std::string text;
  const std::string limited = "TMPDIR=" + folder.path().string() + " timeout 100 " + command;
  FILE* pipe = ::popen((limited + " 2>&1").c_str(), "re");
  char buffer[4096];
  for (size_t size = 0; (size = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    text.append(buffer, size);
  }
  ::pclose(pipe);
  return text;
}

double loss_in(const std::string& text) {
  std::smatch match;
  return std::regex_search(text, match, std::regex("final loss: ([0-9.e-]+)")) ? std::stod(match[1])
                                                                               : -1.0;
}

class LaunchersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    alone_ = loss_in(output_of(kDigits));
  }
  static bool is_installed(const std::string& program) {
    return std::system(("command -v " + program + " > /dev/null").c_str()) == 0;
  }
  static void expect_same_loss(const std::string& text) {
    ASSERT_GT(alone_, 0);
    EXPECT_NEAR(loss_in(text), alone_, 1e-6 * alone_) << text;
  }
  static double alone_;
};
double LaunchersTest::alone_ = 0;

TEST_F(LaunchersTest, OpenMpi) {
  if (!is_installed("mpirun.openmpi"))
    GTEST_SKIP() << "mpirun.openmpi is not installed (Debian: openmpi-bin)";
  expect_same_loss(output_of("mpirun.openmpi --oversubscribe -n 2 " + kOverGloo));
}

TEST_F(LaunchersTest, Mpich) {
  if (!is_installed("mpirun.mpich")) GTEST_SKIP() << "Debian: mpich";
  expect_same_loss(output_of("mpirun.mpich -n 2 " + kOverGloo));
}

TEST_F(LaunchersTest, Torchrun) {
  if (!is_installed("torchrun")) GTEST_SKIP() << "torchrun is not installed (Python package torch)";
  expect_same_loss(output_of("torchrun --standalone --no-python --nproc-per-node 2 " + kOverGloo));
  expect_same_loss(output_of(kLaunch + "--via torchrun " + kDigits));
}

TEST_F(LaunchersTest, Slurm) {
  if (!SlurmCluster::is_installed())
    GTEST_SKIP() << "Slurm is not installed (Debian: slurm-wlm, with munge)";
  const SlurmCluster cluster;
  ASSERT_TRUE(cluster.is_up()) << cluster.logs();
  expect_same_loss(cluster.run("srun --ntasks=2 " + kOverGloo).output);
  expect_same_loss(cluster.run("salloc --ntasks=2 " + kLaunch + "--via slurm " + kDigits).output);
}

}  // namespace
}  // namespace coupler
