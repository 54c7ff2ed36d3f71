// How options of `coupler launch` affect the processes it starts, and which options it rejects.
#include <sys/socket.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/network.h"
#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

std::set<std::string> set_of_lines(const std::string& text) {
  std::istringstream stream(text);
  std::set<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.insert(line);
  }
  return lines;
}

TEST(LaunchOptions, AcceleratesCommandLine_StartsThatManyProcesses) {
  const auto result = run_coupler({"launch", "--cpu", "--num_processes", "3", "--num-machines=1",
                                   "--main_process_port", "0", "--mixed_precision", "bf16", kMeet});
  EXPECT_EQ(result.code, 0) << result.error;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_SAYS(result.output, "rank " + std::to_string(rank) + " of 3 met 3");
  }
}

TEST(LaunchOptions, UseFsdp_IsBackendsUse_WithPrecisionAndBase) {
  const auto result = run_coupler({"launch", "--use_fsdp", "--cpu", "--mixed_precision", "bf16",
                                   "-n", "2", "/bin/sh", "-c", "echo \"$COUPLER_OVERRIDES\""});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "training.mixed_precision=\"bf16\"\n");
  EXPECT_SAYS(result.output, "backend.use=\"fsdp\"\n");
  EXPECT_SAYS(result.output, "backend.fsdp.base=\"gloo_cpu\"\n");
}

TEST(LaunchOptions, DevicesOfOtherLaunchers_AreVisibleToTheRanks) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--gpu_ids", "3"}, {"--include", "localhost:3"}}) {
    std::vector<std::string> all = {"launch"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"/bin/sh", "-c", "echo devices $CUDA_VISIBLE_DEVICES"});
    const auto result = run_coupler(all);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_SAYS(result.output, "devices 3\n");
  }
}

TEST(LaunchOptions, WithoutEffect_AreNamed_AndTheJobRuns) {
  const auto result =
      run_coupler({"launch", "-n", "1", "--fp8_margin", "2", "--no_python", "/bin/echo", "ran"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "ran\n");
  EXPECT_SAYS(result.error, "--fp8_margin 2 has no effect: scales come from the current tensor");
}

TEST(LaunchOptions, LogDir_HasAFileARank_WithBothOutputs_AndTheTerminalAll) {
  CouplerRun run(launch(2, {"--log-dir", "deep/logs", "/bin/sh", "-c",
                            "echo out $COUPLER_RANK; echo err $COUPLER_RANK >&2"}));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0) << result.error;
  for (const char* rank : {"0", "1"}) {
    const auto log = read_file(run.folder() + "/deep/logs/rank-" + rank + ".log");
    EXPECT_EQ(set_of_lines(log),
              (std::set<std::string>{std::string("out ") + rank, std::string("err ") + rank}));
    EXPECT_SAYS(result.output, std::string("out ") + rank + "\n");
    EXPECT_SAYS(result.error, std::string("err ") + rank + "\n");
  }
}

TEST(LaunchOptions, LogDir_KeepsWhatThereWas_AndIsWithoutPrefixes) {
  CouplerRun run(launch(1, {"/bin/sh", "-c",
                            COUPLER_BINARY_DIR "/bin/coupler launch --log-dir l --prefix "
                                               "/bin/echo one; " COUPLER_BINARY_DIR
                                               "/bin/coupler launch --log-dir l /bin/echo two"}));
  const auto result = run.wait();
  EXPECT_EQ(read_file(run.folder() + "/l/rank-0.log"), "one\ntwo\n") << result.error;
  EXPECT_EQ(result.output, "[rank 0] one\ntwo\n");
}

TEST(LaunchOptions, LogDirThatCannotBeMade_IsRefused_NamingIt) {
  CouplerRun run(launch(2, {"--log-dir", "/dev/null/logs", "/bin/true"}));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 1);
  EXPECT_SAYS(result.error, "/dev/null/logs");
  EXPECT_SAYS(result.error, "--log-dir");
  EXPECT_TRUE(run.is_all_gone());
}

const std::string kAllowed = "grep Cpus_allowed_list /proc/self/status";

TEST(LaunchOptions, BindCore_GivesEachRankCoresOfItsOwn) {
  const auto all = run_coupler(launch_script(1, kAllowed)).output;
  if (all.find_first_of(",-") == std::string::npos) {
    GTEST_SKIP() << "only one processor is available here: " << all;
  }
  for (const char* backend : {"gloo_cpu", "mpi", "shm"}) {
    if (std::string(backend) == "mpi" && !std::filesystem::exists("/usr/bin/mpirun.openmpi")) {
      continue;
    }
    const auto result =
        run_coupler(launch(2, {"--bind", "core", "/bin/sh", "-c", kAllowed}, backend));
    EXPECT_EQ(result.code, 0) << result.error;
    const auto lists = set_of_lines(result.output);
    EXPECT_EQ(lists.size(), 2U) << result.output;  // the ranks' lists differ
    EXPECT_EQ(lists.count(all.substr(0, all.size() - 1)), 0U);
  }
}

TEST(LaunchOptions, BindOfMoreRanksThanCores_IsRefused_NothingStarted) {
  CouplerRun run(launch(4000, {"--bind=core", "/bin/sh", "-c", "echo $$ > started"}));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "4000 processes cannot be bound");
  EXPECT_SAYS(result.error, "--bind none");
  EXPECT_FALSE(std::filesystem::exists(run.folder() + "/started"));
}

TEST(LaunchOptions, DryRun_SaysWhatWouldBeStarted_AndStartsNothing) {
  CouplerRun run(launch(
      2, {"--dry-run", "--bind=none", "--log-dir", "l", "/bin/sh", "-c", "echo $$ > started"}));
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "processes: 2\nbackend: gloo_cpu\n");
  EXPECT_SAYS(result.output, "/l/rank-1.log");
  EXPECT_SAYS(result.output, "command: /bin/sh -c 'echo $$ > started'\n");
  EXPECT_FALSE(std::filesystem::exists(run.folder() + "/started"));
  EXPECT_FALSE(std::filesystem::exists(run.folder() + "/l"));
}

TEST(LaunchOptions, Auto_DependsOnWhereTheRanksAre) {
  const auto expect_backend = [](int processes, std::vector<std::string> options,
                                 const std::string& backend) {
    // Without a device, so that the result is the same on a machine with GPUs.
    options.insert(options.end(), {"--dry-run", "-o", "training.device=cpu", "/bin/true"});
    const auto result = run_coupler(launch(processes, options, "auto"));
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_SAYS(result.output, "backend: " + backend + "\n");
  };
  const std::vector<std::string> machines = {
      "--machines",     "2",        "--machine-rank", "1",
      "--main-address", "10.0.0.1", "--main-port",    "29500"};
  expect_backend(2, {}, "shm");
  expect_backend(4, machines, "hierarchical");
  expect_backend(2, machines, "gloo_cpu");  // one rank on each
}

TEST(LaunchOptions, PrintEnv_ShowsEachRanksVariables) {
  const auto result = run_coupler(launch(2, {"--print-env", "/bin/false"}));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "# rank 1");
  EXPECT_SAYS(result.output, "COUPLER_RANK=1\nCOUPLER_WORLD_SIZE=2\n");
  EXPECT_SAYS(result.output, "OMP_NUM_THREADS=");
}

TEST(LaunchOptions, SeveralMachines_EachLauncherStartsItsRanks) {
  const auto result = run_coupler(
      launch(4, {"--machines", "2", "--machine-rank", "1", "--main-address", "10.0.0.1",
                 "--main-port", "29500", "/bin/sh", "-c",
                 "echo \"$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
                 "$COUPLER_RANK\""}));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(set_of_lines(result.output),
            (std::set<std::string>{"2 4 0 2 10.0.0.1 29500 ", "3 4 1 2 10.0.0.1 29500 "}));
}

TEST(LaunchOptions, SeveralMachines_FailuresAreNamedByTheirRankInTheJob) {
  const auto result =
      run_coupler(launch(4, {"--machines", "2", "--machine-rank", "1", "--main-address", "h",
                             "--main-port", "1", "/bin/sh", "-c", "[ $RANK = 2 ] || exit 9"}));
  EXPECT_EQ(result.code, 9);
  EXPECT_SAYS(result.error, "rank 3 exited with code 9");
}

TEST(LaunchOptions, MachinesThatDoNotFit_AreRefused_WithTheFix) {
  const struct {
    std::vector<std::string> words;
    const char* says;
  } rows[] = {
      {{"--machines", "2"}, "--machines 2 needs --machine-rank R"},
      {{"--machines", "2", "--machine-rank", "0"}, "needs --main-address HOST"},
      {{"--machines", "2", "--machine-rank", "0", "--main-address", "h"}, "needs --main-port"},
      {{"--machines", "2", "--machine-rank", "2"}, "run from 0 to 1"},
      {{"--machine-rank", "1"}, "also give --machines"},
      {{"--machines", "3", "--machine-rank", "0", "--main-address", "h", "--main-port", "1"},
       "4 processes cannot be divided evenly among 3"},
      {{"--per-machine", "3"}, "-n 4 and --per-machine 3 contradict each other"},
      {{"--nproc_per_node", "2"}, "-n 4 and --nproc_per_node 2 contradict each other on 1 machine"},
      {{"--num_gpus", "2"}, "-n 4 and --num_gpus 2 contradict each other"},
      {{"--nnodes", "2"}, "--nnodes 2 needs --machine-rank R"},
      {{"--exclude", "node1"}, "--exclude node1 needs a hostfile"},
      {{"--include", "localhost:0", "--num_gpus", "1"}, "--num_gpus 1 and --include localhost:0"},
      {{"--include", "node7:0"}, "only devices of this machine can be named"},
      {{"--tee", "3"}, "--tee 3 works only with --log-dir FOLDER"},
      {{"--via", "slurm", "--print", "--gpu_ids", "0"}, "--gpu-ids works only with ranks"},
      {{"--zero_stage", "3"}, "add --use_deepspeed"},
      {{"--config_file", "a.yaml"}, "coupler config import a.yaml"},
      {{"--machines", "2", "--machine-rank", "0", "--main-address", "192.0.2.1", "--main-port",
        "29500"},
       "not an address of this machine"},
      {{"--interface", "nothere0"}, "this machine has no network interface 'nothere0'"},
      {{"--interface", "192.0.2.1"}, "this machine has no network interface '192.0.2.1'"},
      {{"--interface", "0.0.0.0"}, "'0.0.0.0' means all network interfaces"},
      {{"--hostfile", "x"}, "--hostfile works only with --via mpirun"},
      {{"--hostfile", "x"}, "add --via mpirun"},
      {{"--image", "x"}, "--image works only with --via k8s"},
      {{"--print"}, "--print works only with"},
      {{"--via", "mpirun", "--machines", "2"}, "mpirun takes its machines from a hostfile"},
      {{"--via", "torchrun", "--bind", "core"}, "torchrun does not bind processes"},
      {{"--via", "slurm", "--main-port", "1"},
       "--main-port works only with local processes and --via torchrun"},
  };
  for (const auto& row : rows) {
    auto words = row.words;
    words.emplace_back("/bin/true");
    const auto result = run_coupler(launch(4, words));
    EXPECT_EQ(result.code, 2) << row.says;
    EXPECT_SAYS(result.error, row.says);
    EXPECT_SAYS(result.error, "hint:");
  }
}

TEST(LaunchOptions, Interface_MayBeNamedByItsAddress) {
  for (const auto& entry : network_addresses()) {
    const auto result = run_coupler(launch(2, {"--interface", entry.address, "/bin/true"}));
    EXPECT_EQ(result.code, 0) << result.error;
  }
}

TEST(LaunchOptions, InterfaceInTheConfiguration_ThatIsNotThere_IsRefused_NamingItsPlace) {
  CouplerRun maker(
      {"launch", "-n", "1", "/bin/sh", "-c",
       "printf '[backend]\\ninterface = \"eth77\"\\n' > c.toml; echo > done; sleep 20"});
  maker.wait_for_file("done");
  const auto result =
      run_coupler({"launch", "-n", "2", "--config", maker.folder() + "/c.toml", "/bin/true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "'eth77'");
  EXPECT_SAYS(result.error, "c.toml:2:");
}

TEST(LaunchOptions, MultiGpuWithoutCuda_IsRefused_WithTheFix) {
  CouplerRun run({"launch", "-n", "2", "--multi_gpu", "/bin/true"});
  const auto result = run.wait();
  if (result.code == 0) {
    GTEST_SKIP() << "a CUDA backend is available here";
  }
  EXPECT_EQ(result.code, 3);
  EXPECT_SAYS(result.error, "--multi_gpu needs CUDA devices");
  EXPECT_SAYS(result.error, "--cpu");
  EXPECT_TRUE(run.is_all_gone());
}

TEST(LaunchOptions, LauncherThatIsItselfATask_IsRefused_UnlessToldTo) {
  const std::map<std::string, std::string> task = {
      {"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"},
      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "4"},
      {"SLURM_NODEID", "0"}};
  const auto refused = run_coupler(launch(2, {kMeet}), task);
  EXPECT_EQ(refused.code, 2);
  EXPECT_SAYS(refused.error, "itself started 4 times by Slurm");
  EXPECT_SAYS(refused.error, "--via slurm");
  const auto wanted = run_coupler(launch(2, {"--machines", "1", kMeet}), task);
  EXPECT_EQ(wanted.code, 0) << wanted.error;
  EXPECT_SAYS(wanted.output, "rank 1 of 2 met 2");
}

TEST(LaunchOptions, MachinesInAPodOfPyTorchJob_ReplaceItsRankVariables) {
  const auto result = run_coupler(
      launch(2, {"--machines", "1", kMeet}),
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "rank 1 of 2 met 2");
}

}  // namespace
}  // namespace coupler::testing_launch
