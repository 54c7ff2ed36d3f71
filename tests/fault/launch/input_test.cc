// Wrong input gives a message with a hint and the documented exit code; nothing is started.
#include <sys/stat.h>

#include <fstream>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

TEST(Launch, ProgramThatIsNotThere_ExitsWith2_NamingIt) {
  const auto slash = run_coupler(launch(2, {"./no_such_program"}));
  EXPECT_EQ(slash.code, 2);
  EXPECT_SAYS(slash.error, "'./no_such_program'");
  EXPECT_SAYS(slash.error, "No such file");
  const auto bare = run_coupler(launch(2, {"no_such_program"}));
  EXPECT_EQ(bare.code, 2);
  EXPECT_SAYS(bare.error, "'no_such_program' was not found in PATH");
}

TEST(Launch, ProgramThatIsNotExecutable_ExitsWith2_NamingTheFix) {
  const auto result = run_coupler(launch(2, {"./in"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "'./in' is not executable");
  EXPECT_SAYS(result.error, "chmod +x ./in");
  const auto folder = run_coupler(launch(2, {"/tmp"}));
  EXPECT_EQ(folder.code, 2);
  EXPECT_SAYS(folder.error, "is a folder");
}

TEST(Launch, ProgramTheKernelRefuses_ExitsWith2_NamingIt) {
  CouplerRun maker(launch(1, {"/bin/sh", "-c", "echo text > program; chmod +x program; sleep 20"}));
  maker.wait_for_file("program");
  const auto path = maker.folder() + "/program";
  ::chmod(path.c_str(), 0700);
  const auto result = run_coupler(launch(2, {path}));
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, path);
  EXPECT_SAYS(result.error, "#!");
}

TEST(Launch, WrongOptions_ExitWith2_NamingThem) {
  const auto unknown = run_coupler({"launch", "--prefx", "true"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_SAYS(unknown.error, "unknown argument '--prefx'; did you mean '--prefix'?");
  for (const char* count : {"0", "-3", "two", "2x", "99999999999"}) {
    const auto result = run_coupler({"launch", "-n", count, "true"});
    EXPECT_EQ(result.code, 2) << count;
    EXPECT_SAYS(result.error, count);
  }
  EXPECT_EQ(run_coupler({"launch", "-n"}).code, 2);
  const auto nothing = run_coupler({"launch", "-n", "2"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_SAYS(nothing.error, "no program");
  EXPECT_EQ(run_coupler({"launch", "-n", "100000", "true"}).code, 2);
}

TEST(Launch, WrongConfiguration_ExitsWith2_NamingTheKey) {
  const auto key = run_coupler({"launch", "-o", "launch.proceses=2", "true"});
  EXPECT_EQ(key.code, 2);
  EXPECT_SAYS(key.error, "launch.processes");
  const auto file = run_coupler({"launch", "--config", "missing.toml", "true"});
  EXPECT_EQ(file.code, 2);
  EXPECT_SAYS(file.error, "missing.toml");
}

TEST(Launch, MpirunNotInstalled_ExitsWith3_NamingThePackage) {
  const auto result = run_coupler(launch(2, {"/bin/true"}, "mpi"), {{"PATH", ""}});
  EXPECT_EQ(result.code, 3);
  EXPECT_SAYS(result.error, "openmpi-bin");
  EXPECT_SAYS(result.error, "backend.use=auto");
}

TEST(Launch, RankVariablesOfAnotherLauncher_EndInAnError_NamingBoth) {
  const auto result = run_coupler(launch(2, {COUPLER_BINARY_DIR "/bin/tests/rendezvous_meet"}),
                                  {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "COUPLER_WORLD_SIZE=2");
  EXPECT_SAYS(result.error, "WORLD_SIZE=1");
  EXPECT_SAYS(result.error, "unset");
}

TEST(RankShim, StartedByHand_ExitsWith2_NamingLaunch) {
  const auto result = run_coupler({"rank-shim", "--", "/bin/true", "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "coupler launch");
}

}  // namespace
}  // namespace coupler::testing_launch
