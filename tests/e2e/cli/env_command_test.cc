#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "run_program.h"

namespace coupler {
namespace {

TEST(EnvCommand, Report_NamesVersionsMachineBackendsAndConfiguration) {
  const Workplace here;
  const Outcome outcome = here.coupler({"env"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* text : {"Coupler ",
                           "\nPlugin ABI ",
                           "\nSystem ",
                           "\nProcessor ",
                           "\nMemory ",
                           "\nProgram ",
                           "\nNUMA ",
                           "\nShared memory ",
                           "\nLimits ",
                           "\nControl group ",
                           "\nNVIDIA driver ",
                           "\nGPUs ",
                           "\nNCCL ",
                           "\nCompiler ",
                           "\nLibTorch ",
                           "\nMPI ",
                           "\nBackends\n",
                           "\nsingle ",
                           "\nVariables\nnone\n",
                           "\nConfiguration\n",
                           "\nbackend.use "}) {
    EXPECT_TRUE(has(outcome.out, text)) << text << " in\n" << outcome.out;
  }
}

TEST(EnvCommand, Json_HoldsTheSame) {
  const Workplace here;
  here.write("train.toml", "[backend]\nuse = \"single\"\n");
  const Outcome outcome =
      here.coupler({"env", "--json", "-o", "backend.x.password=hush"}, {{"COUPLER_LOG", "error"}});
  EXPECT_EQ(outcome.exit_code, 0);
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(report.at("facts").at("LibTorch").get<std::string>().empty());
  EXPECT_EQ(report.at("facts").at("Program"), COUPLER_BINARY_DIR "/bin/coupler");
  EXPECT_EQ(report.at("variables").at("COUPLER_LOG"), "error");
  EXPECT_EQ(report.at("configuration").at("file"), "train.toml");
  EXPECT_EQ(report.at("configuration").at("valid"), true);
  EXPECT_EQ(report.at("backends").back().at("name"), "single");
  EXPECT_FALSE(has(outcome.out, "hush"));
  const auto wrong =
      nlohmann::json::parse(here.coupler({"env", "--json", "-o", "backend.us=1"}).out);
  EXPECT_EQ(wrong.at("configuration").at("valid"), false);
  EXPECT_TRUE(has(wrong.at("configuration").at("text"), "backend.us"));
}

TEST(EnvCommand, Variables_AreListedButNeverSecrets) {
  const Workplace here;
  const Outcome outcome =
      here.coupler({"env", "-o", "backend.x.password=hush1", "-o", "backend.x.chunk=7"},
                   {{"COUPLER_LOG", "debug"},
                    {"OMP_NUM_THREADS", "3"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"SLURM_JWT", "hush2"},
                    {"COUPLER_STORE_SECRET", "hush3"},
                    {"OMPI_MCA_orte_precondition_transports", "hush4"},
                    {"SLURM_JOB_NAME", "evil\x1b[31m"},
                    {"UNRELATED", "not listed"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.out, "\nCOUPLER_LOG=debug\n")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\nOMP_NUM_THREADS=3\n"));
  EXPECT_TRUE(has(outcome.out, "\nMASTER_ADDR=127.0.0.1\n"));
  EXPECT_TRUE(has(outcome.out, "\nSLURM_JWT=(hidden)\n"));
  EXPECT_TRUE(has(outcome.out, "\nCOUPLER_STORE_SECRET=(hidden)\n"));
  EXPECT_TRUE(has(outcome.out, "\nSLURM_JOB_NAME=evil\\x1b[31m\n"));
  EXPECT_TRUE(has(outcome.out, "\nbackend.x.chunk "));
  EXPECT_FALSE(has(outcome.out, "hush"));
  EXPECT_FALSE(has(outcome.out, "UNRELATED"));
}

TEST(EnvCommand, WrongConfiguration_IsPartOfTheReport) {
  const Workplace here;
  here.write("train.toml", "[backend]\nus = 1\n");
  const Outcome outcome = here.coupler({"env"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.out,
                  "\nConfiguration\ntrain.toml:2:1: unknown key 'backend.us'; did you "
                  "mean 'backend.use'?\n"))
      << outcome.out;
}

TEST(EnvCommand, LibTorch_IsReadFromItsFiles) {
  const Workplace here;
  here.write(
      "torch/version.py",
      "from typing import Optional\n__version__ = '2.12.1+cpu'\ncuda: Optional[str] = None\n");
  const std::string root = (here.path() / "torch").string();
  EXPECT_TRUE(has(here.coupler({"env"}, {{"COUPLER_TORCH_ROOT", root}}).out,
                  "2.12.1+cpu, " + root + " (CPU only)\n"));
  here.write("bare/include/torch/headeronly/version.h",
             "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n"
             "#define TORCH_VERSION_PATCH 0\n");
  const std::string bare = (here.path() / "bare").string();
  EXPECT_TRUE(has(here.coupler({"env"}, {{"COUPLER_TORCH_ROOT", bare}}).out, "2.11.0, " + bare));
  EXPECT_TRUE(has(here.coupler({"env"}, {{"COUPLER_TORCH_ROOT", "/nowhere"}}).out,
                  "none in /nowhere (run coupler setup-torch, or set COUPLER_TORCH_ROOT)"));
}

TEST(EnvCommand, Mpirun_IsAskedForItsVersion) {
  const Workplace here;
  EXPECT_TRUE(has(here.coupler({"env"}, {{"PATH", here.path()}}).out, "mpirun not found in PATH"));
  here.write("mpirun", "#!/bin/sh\necho 'mpirun (Test) 9.9'\necho more\n", 0755);
  const std::string path = here.path().string() + ":/usr/bin:/bin";
  EXPECT_TRUE(has(here.coupler({"env"}, {{"PATH", path}}).out,
                  "mpirun (Test) 9.9, " + here.path().string() + "/mpirun\n"));
}

// Reaps a process group's orphans, which this process adopts. Whether all end within 10 seconds.
bool all_end(pid_t group) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    const pid_t reaped = waitpid(-group, nullptr, WNOHANG);
    if (reaped < 0 && errno == ECHILD) return kill(-group, 0) != 0;
    if (reaped == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(EnvCommand, MpirunThatHangs_IsKilledAndReported) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const Workplace here;
  here.write("mpirun", "#!/bin/sh\necho $$ > pid\nsleep 600\n", 0755);
  const std::string path = here.path().string() + ":/usr/bin:/bin";
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = here.coupler({"env"}, {{"PATH", path}});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.out, "mpirun, which does not answer --version")) << outcome.out;
  pid_t pid = 0;
  std::ifstream(here.path() / "pid") >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(all_end(pid)) << "a process of its group still runs";
}

}  // namespace
}  // namespace coupler
