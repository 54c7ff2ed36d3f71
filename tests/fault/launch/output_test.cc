// What ranks receive: variables, input, configuration; and where their output goes.
#include <algorithm>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

TEST(Launch, EightRanks_Meet_ThroughTheLaunchersStore) {
  const auto result = run_coupler(launch(8, {kMeet}));
  EXPECT_EQ(result.code, 0) << result.error;
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_SAYS(result.output, "rank " + std::to_string(rank) + " of 8 met 8");
  }
  EXPECT_EQ(result.error, "");
}

TEST(Launch, OneProcess_IsAWorldOfOne_WithoutAStore) {
  const auto result = run_coupler(launch(1, {kMeet}));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "rank 0 of 1 met 1");
}

TEST(Launch, Input_GoesToRankZero_OthersHaveNone) {
  const auto result =
      run_coupler(launch_script(3, "cat; echo \"end $COUPLER_RANK\""), {}, "typed\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output.find("typed"), result.output.rfind("typed")) << result.output;
  EXPECT_SAYS(result.output, "end 2");
}

TEST(Launch, ProgramsArguments_StayTheirOwn_OptionsIncluded) {
  const auto result = run_coupler(launch(
      1, {"/bin/sh", "-c", "echo args \"$@\"", "sh", "-n", "7", "--config", "x", "-o", "y"}));
  EXPECT_EQ(result.output, "args -n 7 --config x -o y\n");
}

TEST(Launch, Prefix_NamesTheRankOfEveryLine_OfBothOutputs) {
  const auto script = "printf 'a\\nb'; echo err >&2";
  const auto result = run_coupler(launch(2, {"--prefix", "/bin/sh", "-c", script}));
  for (const char* line : {"[rank 0] a\n", "[rank 0] b\n", "[rank 1] a\n", "[rank 1] b\n"}) {
    EXPECT_SAYS(result.output, line);
  }
  EXPECT_SAYS(result.error, "[rank 0] err\n");
  EXPECT_SAYS(result.error, "[rank 1] err\n");
}

TEST(Launch, ManyLines_ArriveWhole_FromAllRanks) {
  const auto script = "seq 1 20000; seq 1 20000 >&2";
  const auto result = run_coupler(launch(3, {"--prefix", "/bin/sh", "-c", script}));
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 60000);
  EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 60000);
  EXPECT_SAYS(result.error, "[rank 2] 20000\n");
}

TEST(Launch, ThreadsPerProcess_AreCoresDividedByProcesses_UnlessSet) {
  const std::string script = "echo \"threads $OMP_NUM_THREADS\"";
  const auto many = run_coupler(launch_script(64, script), {{"OMP_NUM_THREADS", ""}});
  EXPECT_SAYS(many.output, "threads 1\n");
  const auto set = run_coupler(launch_script(2, script), {{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(set.output, "threads 7\nthreads 7\n");
  const auto configured = run_coupler(
      {"launch", "-n", "1", "-o", "launch.threads_per_process=3", "/bin/sh", "-c", script},
      {{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(configured.output, "threads 3\n");
}

TEST(Launch, ConfigurationAndOverrides_ReachTheRanks_AsTheLaunchersCommandLine) {
  // The coupler program itself is the rank and reads the configuration as every rank does.
  const std::string coupler = COUPLER_BINARY_DIR "/bin/coupler";
  const auto script = "cd / && echo '' && " + coupler + " config --explain";
  const auto result = run_coupler(
      {"launch", "-n", "1", "--config", "in", "-o", "training.seed=5", "/bin/sh", "-c", script}, {},
      "[training]\nseed = 4\ngradient_accumulation_steps = 9\n");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "coupler launch -o training.seed");
  EXPECT_SAYS(result.output, "/in:3:1");
}

TEST(Launch, Processes_DefaultToTheConfiguration) {
  const auto result = run_coupler({"launch", "-o", "launch.processes=3", "-o",
                                   "backend.use=gloo_cpu", "/bin/sh", "-c", "echo x"});
  EXPECT_EQ(result.output, "x\nx\nx\n");
}

TEST(Launch, TheJobsSecret_IsInNoArgumentAndNoVariable) {
  const auto script =
      "cat $COUPLER_JOB_FILE > job; stat -L -c %a $COUPLER_JOB_FILE > mode; "
      "cat /proc/$$/environ /proc/$$/cmdline /proc/$PPID/environ /proc/$PPID/cmdline > seen; echo "
      ">> seen";
  CouplerRun run(launch(
      2, {"/bin/sh", "-c", "[ $COUPLER_RANK = 1 ] || { " + std::string(script) + "; sleep 20; }"}));
  const auto job = run.wait_for_file("job");
  // Title, host, port, secret.
  const auto start = job.find('\n', job.find('\n', job.find('\n') + 1) + 1) + 1;
  const auto secret = job.substr(start, 64);
  ASSERT_EQ(secret.size(), 64U) << job;
  EXPECT_EQ(run.wait_for_file("mode"), "600\n");
  EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
  EXPECT_EQ(run.wait_for_file("seen").find(secret), std::string::npos);
}

}  // namespace
}  // namespace coupler::testing_launch
