// A job that saves again and again on a disk that fails and over connections that are slow: every
// checkpoint that is there is whole, and all of it is of one step.
//
// COUPLER_CAMPAIGN_CHECKPOINTS=20000 goes on until there were as many, and prints what happened.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "run_program.h"
#include "stamp_check.h"

namespace coupler::testing_checkpoint {
namespace {

struct Backend {
  const char* name;
  std::vector<std::string> options;
};
const std::vector<Backend> kBackends = {
    {"gloo_cpu", {"-o", "backend.use=gloo_cpu"}},
    {"mpi", {"-o", "backend.use=mpi"}},
    {"fsdp", {"-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu"}},
    {"ZeRO 1",
     {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=gloo_cpu", "-o",
      "backend.deepspeed_like.stage=1"}},
    {"ZeRO 2",
     {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=gloo_cpu", "-o",
      "backend.deepspeed_like.stage=2"}},
    {"ZeRO 3",
     {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=gloo_cpu", "-o",
      "backend.deepspeed_like.stage=3"}},
};

struct Setting {
  size_t backend = 0;
  int world = 2;
  bool async = true;
  int every = 3;
  int chance = 4;  // of 1,000 calls
  int delay = 0;   // us, of calls to the disk
  int slow = 0;    // us, of what the last rank's saving thread tells the others
  std::string fault = "any";
  uint64_t seed = 1;
};

struct Seen {
  int64_t jobs = 0, ended = 0, checkpoints = 0, failed_saves = 0;
  std::map<std::string, int64_t> faults, calls;  // that were hit

  void add(const Seen& other) {
    jobs += other.jobs;
    ended += other.ended;
    checkpoints += other.checkpoints;
    failed_saves += other.failed_saves;
    for (const auto& [name, count] : other.faults) faults[name] += count;
    for (const auto& [name, count] : other.calls) calls[name] += count;
  }
};

std::string describe(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  return text;
}

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

// Fails the test where a checkpoint is torn or cannot be read.
Seen run_job(const Setting& setting, const std::string& steps) {
  const Workplace here;
  const std::string folder = (here.path() / "saved").string();
  const std::string hits = (here.path() / "hits").string();
  std::filesystem::create_directory(folder);
  std::vector<std::string> arguments{"launch",
                                     "-n",
                                     std::to_string(setting.world),
                                     "-o",
                                     "launch.threads_per_process=1",
                                     "-o",
                                     "backend.timeout=\"20s\"",
                                     "-o",
                                     "checkpoint.dir=" + folder,
                                     "-o",
                                     fmt::format("checkpoint.every={}", setting.every),
                                     "-o",
                                     fmt::format("checkpoint.async={}", setting.async),
                                     "-o",
                                     "checkpoint.resume=no",
                                     "-o",
                                     "training.bucket_cap_mb=1"};
  const Backend& backend = kBackends.at(setting.backend);
  arguments.insert(arguments.end(), backend.options.begin(), backend.options.end());
  // Each rank draws its own numbers; the last is slow to tell the others of its saves.
  const std::string start = fmt::format(
      "if [ $COUPLER_RANK = {} ]; then export DISK_FAULTS_SLOW={}; fi; "
      "export DISK_FAULTS_SEED=$(({} + COUPLER_RANK)) LD_PRELOAD={}; exec {} {}",
      setting.world - 1, setting.slow, 16 * setting.seed, DISK_FAULTS, STAMP_JOB, steps);
  arguments.insert(arguments.end(), {"sh", "-c", start});
  const Outcome outcome =
      here.coupler(arguments, {{"DISK_FAULTS_FOLDER", folder},
                               {"DISK_FAULTS_HITS", hits},
                               {"DISK_FAULTS_DO", setting.fault},
                               {"DISK_FAULTS_CHANCE", std::to_string(setting.chance)},
                               {"DISK_FAULTS_DELAY", std::to_string(setting.delay)}});
  const std::string title = fmt::format(
      "{}, {} ranks, {}, every {}, {} at {} of 1,000 calls, delay {} us, slow {} us, "
      "seed {}",
      backend.name, setting.world, setting.async ? "async" : "sync", setting.every, setting.fault,
      setting.chance, setting.delay, setting.slow, setting.seed);
  EXPECT_EQ(outcome.exit_code, 0) << title << "\n" << outcome.err;
  Seen seen{.jobs = 1, .ended = outcome.exit_code == 0 ? 1 : 0};
  seen.failed_saves = occurrences(outcome.err, "no checkpoint was made in") / setting.world;
  for (const checkpoint::Entry& entry : checkpoint::list(folder)) {
    ++seen.checkpoints;
    if (!entry.manifest) {
      ADD_FAILURE() << title << ": " << entry.path << " " << entry.reason;
      continue;
    }
    try {
      EXPECT_EQ(check_stamps(entry.path, *entry.manifest), "") << title << ": " << entry.path;
    } catch (const std::exception& error) {
      ADD_FAILURE() << title << ": " << entry.path << ": " << error.what();
    }
  }
  std::ifstream file(hits);
  for (std::string call, fault; file >> call >> fault;) {
    ++seen.calls[call];
    ++seen.faults[fault];
  }
  return seen;
}

int64_t campaign() {
  const char* text = std::getenv("COUPLER_CAMPAIGN_CHECKPOINTS");
  return text == nullptr ? 0 : std::atoll(text);
}

// Rank 0 learns that a save has failed some steps before rank 1 does. Before saves had identities
// that made checkpoints of two steps.
TEST(TornCheckpoint, RanksThatLearnOfAFailureAtDifferentSteps_SaveTheSameOne) {
  const Seen seen = run_job({.every = 5, .chance = 12, .slow = 32000, .fault = "ENOSPC"}, "200 5");
  EXPECT_GE(seen.checkpoints, 3);
  EXPECT_GE(seen.failed_saves, 3);
  EXPECT_GE(seen.faults.at("ENOSPC"), 3);
}

// Every backend, world, way of saving and fault.
TEST(TornCheckpoint, Campaign) {
  std::map<std::string, Seen> rows;
  Seen total;
  uint64_t seed = 100;
  do {
    for (size_t backend = 0; backend < kBackends.size(); ++backend) {
      for (int world = 1; world <= 4; ++world) {
        for (const bool async : {true, false}) {
          // Without the campaign's number each backend once in each way, at changing worlds.
          if (campaign() == 0 && world != 2 + static_cast<int>((backend + async) % 3)) continue;
          ++seed;
          const Setting setting{.backend = backend,
                                .world = world,
                                .async = async,
                                .every = 1 + static_cast<int>(seed % 5),
                                .chance = 2 + static_cast<int>(seed % 11),
                                .delay = static_cast<int>(seed % 4) * 400,
                                .slow = static_cast<int>(seed % 3) * 3000,
                                .seed = seed};
          const Seen seen = run_job(setting, "480");
          rows[fmt::format("{:8} {} ranks {}", kBackends[backend].name, world,
                           async ? "async" : "sync ")]
              .add(seen);
          total.add(seen);
        }
      }
    }
  } while (total.checkpoints < campaign() && !HasFailure());
  for (const auto& [name, row] : rows) {
    std::printf("%-28s %4ld jobs, %6ld checkpoints, %5ld saves failed\n", name.c_str(), row.jobs,
                row.checkpoints, row.failed_saves);
  }
  std::printf("%ld jobs, %ld ended well, %ld checkpoints, %ld saves failed\n", total.jobs,
              total.ended, total.checkpoints, total.failed_saves);
  std::printf("faults: %s\nat calls: %s\n", describe(total.faults).c_str(),
              describe(total.calls).c_str());
  const int64_t least = campaign() >= 20000 ? 100 : 1;
  for (const char* fault :
       {"ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES", "EMFILE", "EINTR", "short_write"}) {
    EXPECT_GE(total.faults[fault], least) << fault;
  }
  for (const char* call : {"create", "write", "fsync", "rename", "mkdir", "remove", "close"}) {
    EXPECT_GE(total.calls[call], least) << call;
  }
}

}  // namespace
}  // namespace coupler::testing_checkpoint
