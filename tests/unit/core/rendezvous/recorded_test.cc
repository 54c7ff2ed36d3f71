// Environments as launchers set them (environments/*.env: rank variables and related ones), and the
// process information in each.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "rendezvous/launcher_env.h"
#include "variables.h"

namespace coupler::rendezvous {
namespace {

using K = LauncherKind;

const std::string kFolder = COUPLER_SOURCE_DIR "/tests/unit/core/rendezvous/environments/";

Variables read_recorded(const std::string& name) {
  std::ifstream file(kFolder + name + ".env");
  EXPECT_TRUE(file) << name;
  Variables variables;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') {
      variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    }
  }
  return variables;
}

struct Expected {
  const char* file;
  K launcher;
  int rank, world_size, local_rank, local_world_size;
  const char* meeting;  // the job file, or host:port
};

const Expected kExpected[] = {
    {"nothing", K::kNone, 0, 1, 0, 1, ""},
    {"coupler_launch", K::kCoupler, 1, 2, 1, 2, "/proc/4711/fd/9"},
    {"coupler_launch_over_mpirun", K::kCoupler, 1, 2, 1, 2, "/proc/4711/fd/9"},
    {"coupler_launch_below_srun", K::kCoupler, 1, 2, 1, 2, "/proc/4711/fd/9"},
    {"torchrun", K::kTorchrun, 3, 4, 1, 2, "node-a:29500"},
    {"torchrun_below_srun", K::kTorchrun, 5, 8, 1, 4, "node01:29500"},
    {"torchrun_below_srun_pmi2", K::kTorchrun, 5, 8, 1, 4, "node01:29500"},
    {"coupler_launch_in_interactive_shell", K::kCoupler, 1, 2, 1, 2, "/proc/4711/fd/9"},
    {"deepspeed", K::kTorchrun, 2, 4, 0, 2, "10.0.0.1:29500"},
    {"by_hand", K::kTorchrun, 1, 2, 1, 2, "127.0.0.1:29501"},
    {"open_mpi_4", K::kOpenMpi, 2, 4, 0, 2, ""},
    {"open_mpi_5", K::kOpenMpi, 1, 2, 1, 2, ""},
    {"open_mpi_below_slurm", K::kOpenMpi, 3, 4, 1, 2, ""},
    {"mpich", K::kMpich, 2, 3, 2, 3, ""},
    {"mpich_below_slurm", K::kMpich, 2, 4, 0, 2, ""},
    {"slurm_srun", K::kSlurm, 3, 5, 1, 2, "node01:21417"},
    {"slurm_srun_pmi2", K::kSlurm, 1, 2, 1, 2, ""},
    {"slurm_sbatch_shell", K::kNone, 0, 1, 0, 1, ""},
    {"slurm_batch_step", K::kNone, 0, 1, 0, 1, ""},
    {"slurm_interactive_shell", K::kNone, 0, 1, 0, 1, ""},
    {"kubernetes_indexed_job", K::kKubernetes, 2, 4, 0, 1, "train-workers-0-0.train:29500"},
    {"kubernetes_independent_pods", K::kNone, 0, 1, 0, 1, ""},
    {"kubernetes_pytorchjob", K::kTorchrun, 2, 3, 0, 1, "train-master-0:23456"},
};

TEST(RecordedEnvironments, Each_IsRead_AsItsLauncherMeansIt) {
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.file);
    const ProcessInfo info = detect(read_recorded(expected.file));
    EXPECT_EQ(info.launcher, expected.launcher);
    EXPECT_EQ(info.rank, expected.rank);
    EXPECT_EQ(info.world_size, expected.world_size);
    EXPECT_EQ(info.local_rank, expected.local_rank);
    EXPECT_EQ(info.local_world_size, expected.local_world_size);
    EXPECT_EQ(info.store_host.empty() ? info.job_file
                                      : info.store_host + ":" + std::to_string(info.store_port),
              expected.meeting);
  }
}

TEST(RecordedEnvironments, Files_AreAllExpected) {
  std::set<std::string> expected;
  for (const Expected& row : kExpected) {
    expected.insert(row.file);
  }
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    EXPECT_EQ(expected.count(entry.path().stem().string()), 1U) << entry.path();
  }
}

// Each recorded environment plus variables from another one: refused with both names.
struct Contradiction {
  const char* file;
  Variables added;
  const char *one, *other;
};

const Contradiction kContradictions[] = {
    {"torchrun",
     {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
     "RANK=3",
     "OMPI_COMM_WORLD_RANK=0"},
    {"mpich", {{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2", "WORLD_SIZE=2"},
    {"mpich", {{"RANK", "2"}, {"WORLD_SIZE", "4"}}, "PMI_SIZE=3", "WORLD_SIZE=4"},
    {"open_mpi_4", {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}, "OMPI_COMM_WORLD_RANK=2", "PMI_RANK=1"},
    {"coupler_launch_over_mpirun",
     {{"OMPI_COMM_WORLD_SIZE", "3"}},
     "COUPLER_WORLD_SIZE=2",
     "OMPI_COMM_WORLD_SIZE=3"},
    // An sbatch script that exports RANK and WORLD_SIZE once, for all tasks.
    {"slurm_srun", {{"RANK", "0"}, {"WORLD_SIZE", "5"}}, "RANK=0", "SLURM_PROCID=3"},
    {"slurm_srun", {{"WORLD_SIZE", "8"}}, "SLURM_STEP_NUM_TASKS=5", "WORLD_SIZE=8"},
    {"slurm_srun_pmi2", {{"PMI_RANK", "0"}}, "PMI_RANK=0", "SLURM_PROCID=1"},
    {"kubernetes_indexed_job",
     {{"JOB_COMPLETION_INDEX", "4"}},
     "JOB_COMPLETION_INDEX=4",
     "WORLD_SIZE=4"},
    {"kubernetes_pytorchjob", {{"PET_NPROC_PER_NODE", "2"}}, "PET_NPROC_PER_NODE=2", "RANK=2"},
    {"slurm_srun", {{"SLURM_NODEID", "3"}}, "SLURM_STEP_TASKS_PER_NODE=2(x2),1", "SLURM_NODEID=3"},
};

TEST(RecordedEnvironments, Contradictions_AreRefused_NamingBothVariables) {
  for (const Contradiction& row : kContradictions) {
    SCOPED_TRACE(row.file);
    Variables variables = read_recorded(row.file);
    for (const auto& [name, value] : row.added) {
      variables[name] = value;
    }
    try {
      const auto info = detect(variables);
      ADD_FAILURE() << "accepted as rank " << info.rank << " of " << info.world_size;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_FALSE(error.detail().hint.empty());
      EXPECT_NE(text.find(row.one), std::string::npos) << text;
      EXPECT_NE(text.find(row.other), std::string::npos) << text;
    }
  }
}

TEST(RecordedEnvironments, WorldSizeExportedForSrun_ThatAgrees_IsNoContradiction) {
  Variables variables = read_recorded("slurm_srun");
  variables["WORLD_SIZE"] = "5";
  variables["MASTER_ADDR"] = "node01";
  const auto info = detect(variables);
  EXPECT_EQ(info.launcher, K::kSlurm);
  EXPECT_EQ(info.rank, 3);
}

TEST(TasksOfNode, SlurmsLists_AreRead_AndNothingElse) {
  EXPECT_EQ(tasks_of_node("4", 0), 4);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_of_node("1,12(x2),3", 2), 12);
  EXPECT_EQ(tasks_of_node("2(x3),1", 4), std::nullopt);
  for (const char* text : {"", "x", "2(x", "2(x3", "2(3)", "-1", "2;2", "0", "99999999999"}) {
    EXPECT_EQ(tasks_of_node(text, 1), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace coupler::rendezvous
