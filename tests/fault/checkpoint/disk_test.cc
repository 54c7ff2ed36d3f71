// Kills, full disks and failing disks at every single call that a job makes while it saves. What
// was reported as committed exists, nothing else is taken for a checkpoint, and the next job
// continues.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "operation_log.h"
#include "saver_run.h"

namespace coupler::testing_checkpoint {
namespace {

using Variables = std::map<std::string, std::string>;

// The calls of a run without faults.
std::vector<Operation> calls_of(const SaverFolder& folder, const SaverArguments& arguments) {
  folder.clear();
  const SaverEnd end =
      Saver(folder, arguments, Variables{{"DISK_FAULTS_LOG", folder.log()}}).wait();
  EXPECT_EQ(end.code, 0) << end.reports;
  EXPECT_EQ(last_committed(end.reports), arguments.count - 1);
  auto operations = read_log(folder.log());
  std::erase_if(operations, [](const Operation& call) { return call.name == "report"; });
  return operations;
}

// One run with one fault, and a run after it. Returns what is wrong; "" if nothing.
std::string try_fault(const SaverFolder& folder, const SaverArguments& arguments,
                      const std::string& what, size_t at) {
  folder.clear();
  const SaverEnd end =
      Saver(folder, arguments,
            Variables{{"DISK_FAULTS_DO", what}, {"DISK_FAULTS_AT", std::to_string(at)}})
          .wait();
  const bool kills = what.starts_with("kill");
  if (kills ? end.code != 128 + SIGKILL : end.code > 1)
    return fmt::format("it exited with {}", end.code);
  const long long reported = last_committed(end.reports);
  std::string problem = examine(folder.checkpoints(), reported, arguments.bytes);
  return problem.empty() ? go_on(folder, arguments, reported) : problem;
}

// Tries the faults at every `step`-th call; returns the number of faults.
size_t try_all(const std::vector<std::string>& faults, const SaverArguments& arguments,
               size_t step) {
  const SaverFolder folder(true);
  const auto calls = calls_of(folder, arguments);
  EXPECT_GT(calls.size(), 60u);
  size_t tried = 0;
  for (const std::string& what : faults) {
    for (size_t at = 1; at <= calls.size(); at += step) {
      const Operation& call = calls[at - 1];
      if (what == "short_write" && call.name != "write") continue;
      const std::string problem = try_fault(folder, arguments, what, at);
      EXPECT_EQ(problem, "") << what << " at call " << at << ", " << call.name << " " << call.path
                             << ", limit " << arguments.limit;
      ++tried;
    }
  }
  return tried;
}

size_t try_limits(const std::vector<std::string>& faults, size_t step) {
  size_t tried = try_all(faults, {.count = 3, .limit = 1}, step);
  if (is_full()) tried += try_all(faults, {.count = 4, .limit = 2, .bytes = 2500000}, 1);
  std::printf("%zu faults\n", tried);
  return tried;
}

TEST(CheckpointDisk, KilledBeforeOrAfterAnyCall_WhatWasCommittedIsThere) {
  EXPECT_GT(try_limits({"kill_before", "kill_after"}, 1), 120u);
}

TEST(CheckpointDisk, AnyCallThatFails_WhatWasCommittedIsThere) {
  EXPECT_GT(try_limits({"ENOSPC", "EIO", "EINTR", "short_write"}, is_full() ? 1 : 7), 20u);
}

// A large file's own thread writes these parts.
TEST(CheckpointDisk, AFaultInTheLaterPartsOfLargeFiles_WhatWasCommittedIsThere) {
  constexpr size_t kLater = size_t{8} << 20;
  const SaverArguments arguments{.count = 1, .limit = 1, .bytes = (size_t{13} << 20) + 5};
  const SaverFolder folder(true);
  const auto calls = calls_of(folder, arguments);
  size_t tried = 0;
  for (size_t at = 1; at <= calls.size(); ++at) {
    const Operation& call = calls[at - 1];
    if (call.name != "write" || call.offset < static_cast<long long>(kLater)) continue;
    for (const char* what :
         {"kill_before", "kill_after", "short_write", "ENOSPC", "EIO", "EINTR"}) {
      EXPECT_EQ(try_fault(folder, arguments, what, at), "") << what << " at call " << at;
      ++tried;
    }
  }
  EXPECT_GE(tried, 24u);
}

// The errors name the file and contain a hint.
TEST(CheckpointDisk, AFullDisk_IsReportedWithTheFile) {
  const SaverFolder folder(true);
  const auto calls = calls_of(folder, {});
  const auto write = std::find_if(calls.begin(), calls.end(), [](const Operation& call) {
    return call.name == "write" && call.path.ends_with("model.bin");
  });
  ASSERT_NE(write, calls.end());
  folder.clear();
  const auto at = std::to_string(write - calls.begin() + 1);
  const SaverEnd end =
      Saver(folder, {}, Variables{{"DISK_FAULTS_DO", "ENOSPC"}, {"DISK_FAULTS_AT", at}}).wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_TRUE(
      end.reports.starts_with("failed: cannot write " + folder.checkpoints() + "/.checkpoint_0."))
      << end.reports;
  EXPECT_NE(end.reports.find(".partial/model.bin: No space left on device\n"
                             "  hint: free some space, or write elsewhere\n"),
            std::string::npos)
      << end.reports;
}

TEST(CheckpointDisk, KilledAtRandomMoments_AgainAndAgain_WhatWasCommittedIsThere) {
  const SaverFolder folder(false);
  const SaverArguments arguments{.count = 1000, .limit = 2, .bytes = 400000};
  std::mt19937 random(11);
  long long reported = -1;
  const int rounds = is_full() ? 500 : 25;
  for (int round = 0; round < rounds; ++round) {
    Saver saver(folder, arguments, {});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120000));
    ::kill(saver.pid(), SIGKILL);
    const SaverEnd end = saver.wait();
    ASSERT_EQ(end.code, 128 + SIGKILL) << end.reports;
    reported = std::max(reported, last_committed(end.reports));
    ASSERT_EQ(examine(folder.checkpoints(), reported, arguments.bytes), "") << "round " << round;
  }
  EXPECT_EQ(go_on(folder, arguments, reported), "");
  std::printf("%d kills, %lld checkpoints\n", rounds, reported + 1);
  EXPECT_GT(reported, rounds / 5);
}

TEST(CheckpointDisk, SeveralJobsAtOnce_OneWrites_TheOthersAreRefused) {
  const SaverFolder folder(true);
  const SaverArguments arguments{.count = 30, .limit = 2, .bytes = 100000};
  std::vector<std::unique_ptr<Saver>> savers;
  for (int i = 0; i < 6; ++i)
    savers.push_back(std::make_unique<Saver>(folder, arguments, Variables{}));
  int wrote = 0;
  long long reported = -1;
  for (const auto& saver : savers) {
    const SaverEnd end = saver->wait();
    reported = std::max(reported, last_committed(end.reports));
    if (end.code == 0) {
      ++wrote;
      continue;
    }
    EXPECT_NE(end.reports.find(folder.checkpoints() + " is in use by "), std::string::npos)
        << end.reports;
  }
  EXPECT_GE(wrote, 1);
  EXPECT_EQ(reported, 30 * wrote - 1);
  EXPECT_EQ(examine(folder.checkpoints(), reported, arguments.bytes), "");
}

}  // namespace
}  // namespace coupler::testing_checkpoint
