// A job saves repeatedly, automatically and by hand, with a failing disk and slow connections, and
// is killed and restarted: every existing checkpoint is complete, and all of it is from one step.
//
// COUPLER_CAMPAIGN_CHECKPOINTS=20000 continues until there were that many checkpoints and prints
// statistics; COUPLER_CAMPAIGN_SEED=2 chooses a different campaign.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <random>
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
  int world_size = 2;
  bool async = true;
  int every = 3;
  int chance = 4;   // of 1,000 calls
  int delay = 0;    // us, of disk calls
  int slow = 0;     // us, of the last rank's messages about saves
  int by_hand = 0;  // steps between calls of save_state
  int limit = 0;
  std::string fault = "any";
  uint64_t seed = 1;

  bool kills() const { return fault.starts_with("kill"); }
};

constexpr int kRestarts = 3;  // after that many, there are no more kills

struct Seen {
  int64_t jobs = 0, ended = 0, checkpoints = 0, failed_saves = 0, by_hand = 0, restarts = 0;
  std::map<std::string, int64_t> faults, calls;  // of the hits

  void add(const Seen& other) {
    jobs += other.jobs;
    ended += other.ended;
    checkpoints += other.checkpoints;
    failed_saves += other.failed_saves;
    by_hand += other.by_hand;
    restarts += other.restarts;
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

// What is wrong with a checkpoint; "" if nothing.
std::string examine(const checkpoint::Entry& entry) {
  if (!entry.manifest) return entry.reason;
  if (entry.manifest->save.empty()) return "no identity";
  for (const checkpoint::ManifestFile& file : entry.manifest->files) {
    if (file.rank < 0) return file.name + " belongs to no rank";
  }
  for (const checkpoint::Difference& difference : checkpoint::verify(entry.path))
    return difference.file + " " + difference.reason;
  return check_stamps(entry.path, *entry.manifest);
}

// Fails the test if a checkpoint is torn or cannot be read.
Seen run_job(const Setting& setting, const std::string& steps) {
  const Workplace here;
  const std::string folder = (here.path() / "saved").string();
  const std::string hits = (here.path() / "hits").string();
  std::filesystem::create_directory(folder);
  std::vector<std::string> arguments{
      "launch",
      "-n",
      std::to_string(setting.world_size),
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
      fmt::format("checkpoint.total_limit={}", setting.limit),
      "-o",
      setting.kills() ? "checkpoint.resume=auto" : "checkpoint.resume=no",
      "-o",
      "training.bucket_cap_mb=1"};
  const Backend& backend = kBackends.at(setting.backend);
  arguments.insert(arguments.end(), backend.options.begin(), backend.options.end());
  if (setting.kills())
    arguments.insert(arguments.begin() + 1, {"--max-restarts", std::to_string(kRestarts)});
  // Each rank draws its own numbers; the last one is slow to notify the others of its saves.
  const std::string start = fmt::format(
      "if [ $COUPLER_RANK = {} ]; then export DISK_FAULTS_SLOW={}; fi; "
      "if [ \"$COUPLER_RESTART_COUNT\" != {} ]; then export LD_PRELOAD={}; fi; "
      "export DISK_FAULTS_SEED=$(({} + 4 * ${{COUPLER_RESTART_COUNT:-0}} + COUPLER_RANK)); "
      "exec {} {} 0 {}",
      setting.world_size - 1, setting.slow, kRestarts, DISK_FAULTS, 16 * setting.seed, STAMP_JOB,
      steps, setting.by_hand);
  arguments.insert(arguments.end(), {"sh", "-c", start});
  const Outcome outcome =
      here.coupler(arguments, {{"DISK_FAULTS_FOLDER", folder},
                               {"DISK_FAULTS_HITS", hits},
                               {"DISK_FAULTS_DO", setting.fault},
                               {"DISK_FAULTS_CHANCE", std::to_string(setting.chance)},
                               {"DISK_FAULTS_DELAY", std::to_string(setting.delay)}});
  const std::string title = fmt::format(
      "{}, {} ranks, {}, every {}, by hand {}, limit {}, {} at {} of 1,000 calls, delay {} us, "
      "slow {} us, seed {}",
      backend.name, setting.world_size, setting.async ? "async" : "sync", setting.every,
      setting.by_hand, setting.limit, setting.fault, setting.chance, setting.delay, setting.slow,
      setting.seed);
  EXPECT_EQ(outcome.exit_code, 0) << title << "\n" << outcome.err;
  Seen seen{.jobs = 1, .ended = outcome.exit_code == 0 ? 1 : 0};
  seen.failed_saves = occurrences(outcome.err, "no checkpoint was made in") / setting.world_size;
  seen.by_hand = occurrences(outcome.err, "not saved by hand") / setting.world_size;
  seen.restarts = occurrences(outcome.err, "coupler: restart ");
  for (const checkpoint::Entry& entry : checkpoint::list(folder)) {
    ++seen.checkpoints;
    try {
      EXPECT_EQ(examine(entry), "") << title << ": " << entry.path;
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

int64_t number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoll(text);
}

// Rank 0 learns some steps before rank 1 that a save has failed. Before saves had identities, this
// caused checkpoints with parts from two steps.
TEST(TornCheckpoint, RanksThatLearnOfAFailureAtDifferentSteps_SaveTheSameOne) {
  const Seen seen = run_job({.every = 5, .chance = 12, .slow = 32000, .fault = "ENOSPC"}, "200 5");
  EXPECT_GE(seen.checkpoints, 3);
  EXPECT_GE(seen.failed_saves, 3);
  EXPECT_GE(seen.faults.at("ENOSPC"), 3);
}

// Without a shared file system, each machine may have its own folder under the path: all ranks load
// parts of the same save, or nothing.
TEST(TornCheckpoint, RanksThatFindDifferentSavesUnderAPath_LoadNone) {
  const Workplace here;
  const auto run = [&](const std::string& folders, const std::string& resume) {
    const std::string start =
        fmt::format("cd {}/{} && exec {} 6", here.path().string(), folders, STAMP_JOB);
    return here.coupler({"launch", "-n", "2", "-o", "backend.use=gloo_cpu", "-o",
                         "launch.threads_per_process=1", "-o", "checkpoint.dir=saved", "-o",
                         "checkpoint.every=3", "-o", "checkpoint.resume=" + resume, "sh", "-c",
                         start});
  };
  for (const char* folder : {"machine_0", "machine_1"}) {
    std::filesystem::create_directory(here.path() / folder);
    EXPECT_EQ(run(folder, "no").exit_code, 0);
    EXPECT_EQ(run(folder, "auto").exit_code, 0);
  }
  const Outcome outcome = run("machine_$COUPLER_RANK", "auto");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome.err, "rank 1 finds a different save in saved/checkpoint_1 than rank 0"))
      << outcome.err;
  EXPECT_TRUE(has(outcome.err, "put checkpoint.dir on a file system that all machines share"))
      << outcome.err;
  // Again, once all ranks see the same folder.
  std::filesystem::remove_all(here.path() / "machine_1");
  std::filesystem::copy(here.path() / "machine_0", here.path() / "machine_1",
                        std::filesystem::copy_options::recursive);
  const Outcome same = run("machine_$COUPLER_RANK", "auto");
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

// Draws the random parts of a setting.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + random_() % choices.size());
  }
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }

 private:
  std::mt19937_64 random_;
};

Setting draw_setting(size_t backend, int world_size, bool async, uint64_t seed) {
  Draw draw(seed);
  Setting setting{.backend = backend, .world_size = world_size, .async = async, .seed = seed};
  setting.every = 1 + draw.below(5);
  setting.chance = 2 + draw.below(11);
  setting.delay = draw.of({0, 400, 800, 1200});
  setting.slow = draw.of({0, 3000, 6000});
  setting.by_hand = draw.of({0, 0, 3, 7});
  setting.limit = draw.of({0, 0, 0, 0, 0, 3});
  if (draw.below(8) == 0) {
    setting.fault = draw.of({"kill_before", "kill_after"});
    setting.chance = 1;
  }
  return setting;
}

// Every backend, world size, way of saving and fault.
TEST(TornCheckpoint, Campaign) {
  std::map<std::string, Seen> rows;
  Seen total;
  uint64_t seed = 1000 * number_from("COUPLER_CAMPAIGN_SEED");
  const int64_t least_checkpoints = number_from("COUPLER_CAMPAIGN_CHECKPOINTS");
  do {
    for (size_t backend = 0; backend < kBackends.size(); ++backend) {
      for (int world_size = 1; world_size <= 4; ++world_size) {
        for (const bool async : {true, false}) {
          // Without a campaign: each backend once in each way, at varying world sizes.
          if (least_checkpoints == 0 && world_size != 2 + static_cast<int>((backend + async) % 3))
            continue;
          const Seen seen = run_job(draw_setting(backend, world_size, async, ++seed), "480");
          rows[fmt::format("{:8} {} ranks {}", kBackends[backend].name, world_size,
                           async ? "async" : "sync ")]
              .add(seen);
          total.add(seen);
        }
      }
    }
    std::printf("so far: %ld jobs, %ld checkpoints\n", total.jobs, total.checkpoints);
    std::fflush(stdout);
  } while (total.checkpoints < least_checkpoints && !HasFailure());
  for (const auto& [name, row] : rows) {
    std::printf("%-28s %4ld jobs, %6ld checkpoints, %5ld saves failed\n", name.c_str(), row.jobs,
                row.checkpoints, row.failed_saves);
  }
  std::printf(
      "%ld jobs, %ld succeeded, %ld restarts, %ld checkpoints, %ld saves failed, %ld of them by "
      "hand\n",
      total.jobs, total.ended, total.restarts, total.checkpoints, total.failed_saves,
      total.by_hand);
  std::printf("faults: %s\nat calls: %s\n", describe(total.faults).c_str(),
              describe(total.calls).c_str());
  const int64_t least = least_checkpoints >= 20000 ? 100 : 1;
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
