// Power losses: replays the calls of a job on a disk that keeps synced data and any part of the
// rest, and stops after each call.
#include "power_loss.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/folder_writer.h"
#include "saver_run.h"

namespace coupler::testing_checkpoint {
namespace {

namespace fs = std::filesystem;

struct Replay {
  size_t states = 0;
  size_t wrong = 0;
  std::string first;  // the first problem
};

// What is wrong with a folder, or keeps a job from continuing there; "" if nothing.
std::string examine_all(const std::string& checkpoints, long long reported, size_t bytes) {
  std::string problem = examine(checkpoints, reported, bytes);
  if (!problem.empty()) return problem;
  checkpoint::FolderWriter writer(checkpoints);
  const int64_t next = writer.next_number();
  if (next <= reported) return fmt::format("the next would be checkpoint_{}", next);
  writer.begin(next);
  writer.abandon();
  const auto left = leftovers(checkpoints);
  return left.empty() ? "" : left.front() + " is left";
}

// Examines every kind of loss after each operation from `first` on.
Replay replay(const SaverFolder& folder, const std::vector<Operation>& operations, size_t bytes,
              int random_states, Lies lies = {}, size_t first = 0) {
  PowerLoss disk(folder.base(), lies);
  Replay result;
  long long reported = -1;
  for (size_t i = 0; i < operations.size(); ++i) {
    disk.apply(operations[i]);
    if (operations[i].name == "report")
      reported = std::max(reported, last_committed(operations[i].data));
    if (i < first) continue;
    for (int kind = 0; kind < static_cast<int>(Pending::kRandom) + random_states; ++kind) {
      fs::remove_all(folder.left());
      const auto pending = static_cast<Pending>(std::min(kind, static_cast<int>(Pending::kRandom)));
      disk.leave(folder.left(), pending, i * 1000 + static_cast<size_t>(kind));
      const std::string problem = examine_all(folder.left() + "/run/checkpoints", reported, bytes);
      ++result.states;
      if (problem.empty() || result.wrong++ > 0) continue;
      result.first = fmt::format("after {} {} (operation {}), kind {}: {}", operations[i].name,
                                 operations[i].path, i, kind, problem);
    }
  }
  return result;
}

std::vector<Operation> record(const SaverFolder& folder, const SaverArguments& arguments) {
  const std::map<std::string, std::string> variables = {{"DISK_FAULTS_LOG", folder.log()}};
  EXPECT_EQ(Saver(folder, arguments, variables).wait().code, 0);
  return read_log(folder.log());
}

TEST(CheckpointPowerLoss, AfterAnyCall_WhatWasCommittedIsThere) {
  const SaverFolder folder(true);
  size_t states = 0;
  for (const int limit : {1, 2}) {
    folder.clear();
    const SaverArguments arguments{.count = 3, .limit = limit};
    const auto operations = record(folder, arguments);
    const Replay result = replay(folder, operations, arguments.bytes, is_full() ? 50 : 2);
    EXPECT_EQ(result.wrong, 0u) << result.first;
    states += result.states;
  }
  std::printf("%zu states\n", states);
}

// The next job finds what the killed job wrote, synced or not.
TEST(CheckpointPowerLoss, AfterAKillAndAnotherRun_WhatWasCommittedIsThere) {
  const SaverFolder folder(true);
  const SaverArguments arguments{.count = 2, .limit = 1, .bytes = 300};
  auto calls = record(folder, arguments);
  std::erase_if(calls, [](const Operation& call) { return call.name == "report"; });
  size_t states = 0;
  for (size_t at = 1; at <= calls.size(); ++at) {
    // Most can be lost between a rename and its sync.
    if (!is_full() && calls[at - 1].name != "rename" && at % 12 != 0) continue;
    folder.clear();
    Saver(folder, arguments,
          {{"DISK_FAULTS_LOG", folder.log()},
           {"DISK_FAULTS_DO", "kill_after"},
           {"DISK_FAULTS_AT", std::to_string(at)}})
        .wait();
    const size_t killed = fs::exists(folder.log()) ? read_log(folder.log()).size() : 0;
    const auto operations = record(folder, arguments);
    const Replay result = replay(folder, operations, arguments.bytes, 1, {}, killed);
    ASSERT_EQ(result.wrong, 0u) << "killed after call " << at << ": " << result.first;
    states += result.states;
  }
  std::printf("%zu states\n", states);
}

// Proves that the tests above can fail: they do with a disk that ignores syncs.
TEST(CheckpointPowerLoss, ADiskThatLies_IsNoticed) {
  const SaverFolder folder(true);
  const SaverArguments arguments{.count = 2, .limit = 1};
  const auto operations = record(folder, arguments);
  EXPECT_EQ(replay(folder, operations, arguments.bytes, 1).wrong, 0u);
  EXPECT_GT(replay(folder, operations, arguments.bytes, 1, {.files = true}).wrong, 0u);
  EXPECT_GT(replay(folder, operations, arguments.bytes, 1, {.folders = true}).wrong, 0u);
}

// They also fail if the writer omits the sync of any one file or folder.
TEST(CheckpointPowerLoss, AProtocolThatForgetsToSync_IsNoticed) {
  const SaverFolder folder(true);
  const SaverArguments arguments{.count = 2, .limit = 1, .bytes = 300};
  const auto operations = record(folder, arguments);
  for (const char* which : {"model.bin", "optimizer.bin", "manifest.json",
                            ".checkpoint_1.*.partial", "checkpoints", "run", "base"}) {
    auto forgetful = operations;
    std::erase_if(forgetful, [&](const Operation& call) {
      return call.name == "fsync" &&
             ::fnmatch(which, fs::path(call.path).filename().c_str(), 0) == 0;
    });
    ASSERT_LT(forgetful.size(), operations.size()) << which;
    const Replay result = replay(folder, forgetful, arguments.bytes, 4);
    EXPECT_GT(result.wrong, 0u) << which;
  }
}

}  // namespace
}  // namespace coupler::testing_checkpoint
