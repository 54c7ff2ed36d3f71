// Training with its state on a disk: the same bits as in memory; the errors for an unusable folder
// and for a disk that fails midway; checkpoints stay unchanged, and nothing is left behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "operation_log.h"
#include "run_program.h"

namespace coupler::testing_checkpoint {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

bool is_full() { return std::getenv("COUPLER_TEST_OFFLOAD_FULL") != nullptr; }

Arguments launch_of(const Arguments& options, const std::string& program) {
  Arguments arguments{"launch",
                      "-n",
                      "2",
                      "-o",
                      "launch.threads_per_process=1",
                      "-o",
                      "backend.use=fsdp",
                      "-o",
                      "backend.fsdp.base=gloo_cpu",
                      "-o",
                      "backend.fsdp.unit_join_below=0"};
  for (const std::string& option : options) {
    arguments.emplace_back("-o");
    arguments.push_back(option);
  }
  arguments.insert(arguments.end(), {"sh", "-c", program});
  return arguments;
}

Arguments offload_to(const fs::path& folder) {
  return {"backend.fsdp.offload.device=nvme", "backend.fsdp.offload.nvme_path=" + folder.string(),
          "backend.fsdp.offload.buffer_count=1"};
}

const std::string kDigits = "exec " DIGITS_PROGRAM " --epochs 2";

// With disk_faults in rank 1.
const std::string kFaulty =
    "if [ \"$COUPLER_RANK\" = 1 ]; then export LD_PRELOAD=" DISK_FAULTS "; fi; " + kDigits;

std::string loss_in(const std::string& output) {
  const size_t at = output.find("final loss: ");
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

TEST(Offload, EndsInTheSameBits_AndLeavesNothing) {
  const Workplace here;
  fs::create_directory(here.path() / "disk");
  const Outcome plain = here.coupler(launch_of({}, kDigits));
  const Outcome offloaded = here.coupler(launch_of(offload_to(here.path() / "disk"), kDigits));
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(offloaded.exit_code, 0) << offloaded.err;
  EXPECT_NE(loss_in(plain.out), "");
  EXPECT_EQ(loss_in(plain.out), loss_in(offloaded.out));
  EXPECT_TRUE(fs::is_empty(here.path() / "disk"));
}

TEST(Offload, SaysWhatIsWrongWithAFolder) {
  const Workplace here;
  const Outcome missing = here.coupler(launch_of(offload_to(here.path() / "missing"), kDigits));
  EXPECT_NE(missing.exit_code, 0);
  expect_in(missing.err,
            fmt::format("cannot offload to the folder {}", (here.path() / "missing").string()));
  expect_in(missing.err, "create the folder");
  here.write("file", "");
  const Outcome file = here.coupler(launch_of(offload_to(here.path() / "file"), kDigits));
  EXPECT_NE(file.exit_code, 0);
  expect_in(file.err, "name a folder");
  if (::geteuid() == 0) return;  // root may write anywhere
  fs::create_directory(here.path() / "locked");
  fs::permissions(here.path() / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  const Outcome locked = here.coupler(launch_of(offload_to(here.path() / "locked"), kDigits));
  EXPECT_NE(locked.exit_code, 0);
  expect_in(locked.err, "name a folder that this user may write to");
}

TEST(Offload, WarnsOfATmpfs) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  const Workplace here;
  const Outcome outcome = here.coupler(launch_of(offload_to("/dev/shm"), kDigits));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.err, "/dev/shm is a tmpfs, which is memory");
}

TEST(Offload, SaysBeforeTrainingThatTheDiskIsFull) {
  const Workplace here;
  const std::string log = (here.path() / "log").string();
  fs::create_directory(here.path() / "disk");
  const Outcome outcome = here.coupler(
      launch_of(offload_to(here.path() / "disk"), kFaulty),
      {{"DISK_FAULTS_FOLDER", (here.path() / "disk").string()},
       {"DISK_FAULTS_READS", "1"},
       {"DISK_FAULTS_DO", "ENOSPC"},
       {"DISK_FAULTS_AT", "4"}});  // two files, then space for one block, then for the next
  EXPECT_NE(outcome.exit_code, 0);
  expect_in(outcome.err, "no room to offload");
  expect_in(outcome.err, (here.path() / "disk").string());
  expect_in(outcome.err, "No space left on device");
  expect_in(outcome.err, "name a folder on a larger disk");
  EXPECT_EQ(outcome.out.find("epoch"), std::string::npos);
}

// Any disk call may fail: the job ends with an error that reports it, nothing hangs, and earlier
// checkpoints are complete: the next start resumes from them and ends with the same bits.
TEST(Offload, ADiskThatFailsEndsTheJob_AndLosesNoCheckpoint) {
  std::string expected;
  size_t calls = 0;
  const auto options = [](const Workplace& here) {
    Arguments result = offload_to(here.path() / "disk");
    result.push_back("checkpoint.dir=" + (here.path() / "saved").string());
    result.emplace_back("checkpoint.every=30");
    return result;
  };
  {
    const Workplace here;
    fs::create_directory(here.path() / "disk");
    const std::string log = (here.path() / "log").string();
    const Outcome outcome = here.coupler(launch_of(options(here), kFaulty),
                                         {{"DISK_FAULTS_FOLDER", (here.path() / "disk").string()},
                                          {"DISK_FAULTS_READS", "1"},
                                          {"DISK_FAULTS_LOG", log}});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    expected = loss_in(outcome.out);
    calls = read_log(log).size();
  }
  EXPECT_GT(calls, 100u);
  const size_t times = is_full() ? 200 : 4;
  size_t resumed = 0;
  for (size_t i = 0; i < times; ++i) {
    for (const std::string error : {"EIO", "ENOSPC"}) {
      const size_t at = 3 + (calls - 3) * (2 * i + (error == "EIO" ? 0 : 1)) / (2 * times);
      const Workplace here;
      fs::create_directory(here.path() / "disk");
      const Outcome failed = here.coupler(launch_of(options(here), kFaulty),
                                          {{"DISK_FAULTS_FOLDER", (here.path() / "disk").string()},
                                           {"DISK_FAULTS_READS", "1"},
                                           {"DISK_FAULTS_DO", error},
                                           {"DISK_FAULTS_AT", std::to_string(at)}});
      // A hint, or reading back the last block, which is no longer needed, may fail unnoticed.
      if (failed.exit_code == 0) {
        EXPECT_EQ(loss_in(failed.out), expected) << error << " at " << at;
        continue;
      }
      expect_in(failed.err, (here.path() / "disk").string());
      expect_in(failed.err, std::strerror(error == "EIO" ? EIO : ENOSPC));
      EXPECT_TRUE(fs::is_empty(here.path() / "disk"));
      const Outcome again = here.coupler(launch_of(options(here), kDigits));
      EXPECT_EQ(again.exit_code, 0) << again.err;
      EXPECT_EQ(loss_in(again.out), expected) << error << " at call " << at << " of " << calls;
      ++resumed;
    }
  }
  EXPECT_GT(resumed, times / 2);
  std::printf("%zu failures at %zu calls\n", resumed, calls);
}

TEST(Offload, AKilledJobLeavesNothing) {
  const Workplace here;
  fs::create_directory(here.path() / "disk");
  const Outcome outcome =
      here.coupler(launch_of(offload_to(here.path() / "disk"),
                             "(sleep 1; kill -9 $$) & exec " DIGITS_PROGRAM " --epochs 100000"));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
  EXPECT_TRUE(fs::is_empty(here.path() / "disk"));
}

}  // namespace
}  // namespace coupler::testing_checkpoint
