// Ranks started by a real torchrun, or a real mpirun, meet without our launcher.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

namespace coupler::rendezvous {
namespace {

// The output of a shell command, including errors.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), size);
  }
  ::pclose(pipe);
  return text;
}

bool is_installed(const std::string& program) {
  return !output_of("command -v " + program).empty();
}

const std::string kMeet = COUPLER_BINARY_DIR "/bin/tests/rendezvous_meet";

void expect_all_met(const std::string& text, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    const auto line = "rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
                      " met " + std::to_string(world_size);
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
}

TEST(JoinStore, UnderTorchrun_IsHostedByRankZero_AllRanksMeet) {
  if (!is_installed("torchrun")) {
    GTEST_SKIP() << "torchrun (of the Python package torch) is not on PATH";
  }
  const auto text =
      output_of("timeout 90 torchrun --standalone --no-python --nproc-per-node 3 " + kMeet + " 60");
  expect_all_met(text, 3);
}

TEST(JoinStore, UnderTheUsersMpirun_IsHostedByRankZero_AllRanksMeet) {
  if (!is_installed("mpirun.openmpi")) {
    GTEST_SKIP() << "mpirun.openmpi (Debian: openmpi-bin) is not on PATH";
  }
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  expect_all_met(output_of("timeout 60 mpirun.openmpi --oversubscribe -n 3 " + kMeet), 3);
}

TEST(JoinStore, UnderTheUsersMpich_IsHostedByRankZero_AllRanksMeet) {
  if (!is_installed("mpirun.mpich")) {
    GTEST_SKIP() << "mpirun.mpich (Debian: mpich) is not on PATH";
  }
  expect_all_met(output_of("timeout 60 mpirun.mpich -n 3 " + kMeet), 3);
  // A shell between mpirun and the rank, like a wrapper script.
  expect_all_met(output_of("timeout 60 mpirun.mpich -n 2 sh -c '" + kMeet + "; exit $?'"), 2);
}

TEST(JoinStore, MpichsVariablesWithoutMpich_AreRefused_NamingTheFix) {
  const auto text = output_of("PMI_RANK=0 PMI_SIZE=2 " + kMeet);
  EXPECT_NE(text.find("PMI_RANK is set, but no ancestor of this process is MPICH's"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("unset PMI_RANK and PMI_SIZE"), std::string::npos) << text;
}

TEST(JoinStore, TasksOnSeveralNodes_WithoutASecret_AreRefused_NamingTheNumbers) {
  const auto text = output_of(
      "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 "
      "SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE='2(x2),1' " +
      kMeet);
  EXPECT_NE(text.find("2 of 5 ranks run on this machine, but MASTER_ADDR"), std::string::npos)
      << text;
  const auto with_nodes = output_of(
      "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 "
      "SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE='2(x2),1' SLURM_STEP_NODELIST='n[1-3]' " +
      kMeet);
  EXPECT_NE(with_nodes.find("2 of 5 ranks run on this machine, but launch.secret_file"),
            std::string::npos)
      << with_nodes;
}

TEST(JoinStore, WithRankVariablesSetByHand_IsHostedByRankZero_AllRanksMeet) {
  const auto port = std::to_string(1024 + ::getpid() % 60000);  // only an id: nothing listens there
  std::string command = "( ";
  for (int rank = 0; rank < 2; ++rank) {
    command += "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
               " WORLD_SIZE=2 RANK=" + std::to_string(rank) + " timeout 60 " + kMeet + " & ";
  }
  expect_all_met(output_of(command + "wait )"), 2);
}

}  // namespace
}  // namespace coupler::rendezvous
