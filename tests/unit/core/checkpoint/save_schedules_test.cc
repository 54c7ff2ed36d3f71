// CheckpointCommit itself, on a real folder, in the orders that the model of a save has found. One
// rank moves at a time, from one call that others can observe to the next, and the result must be
// the model's.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_commit.h"
#include "checkpoint/names.h"
#include "checkpoint_files.h"
#include "conductor.h"
#include "formats/safetensors_writer.h"
#include "save_model.h"
#include "store/store.h"

namespace coupler::checkpoint {
namespace {

using model::Action;
using model::End;
using model::Event;
using model::kIds;
using model::kRanks;
using model::kSaves;
using model::Path;
using model::Place;

std::string content(const std::string& identity, int64_t step) {
  return fmt::format("save {} step {:03}", identity, step);
}

std::vector<NamedFile> write_piece(const CheckpointCommit::Save& save, int rank, int64_t step) {
  const std::string name = fmt::format("model-{}.safetensors", rank);
  const std::string text = content(save.identity, step);
  safetensors::Writer file(save.path + "/" + name,
                           {{"text", safetensors::DType::kU8, {static_cast<int64_t>(text.size())}}},
                           {{kSaveKey, save.identity}});
  file.write("text", text.data(), text.size());
  return {{name, file.finish()}};
}

std::string text_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool has_failed(const std::string& end) { return end.starts_with("failed: "); }

// One schedule: a job, and the next job if it is killed.
class ConductedJobs {
 public:
  explicit ConductedJobs(std::string folder) : folder_(std::move(folder)) { start(0); }
  ~ConductedJobs() {
    conductor_.free();
    join();
    if (survivor_.joinable()) survivor_.join();
  }
  ConductedJobs(const ConductedJobs&) = delete;
  ConductedJobs& operator=(const ConductedJobs&) = delete;

  // "", or why the code cannot take that step now.
  std::string go(const Event& event) {
    // A step of rank 0 alone does not change its state.
    if (event.action == Action::kStep) return "";
    if (event.action != Action::kKill) return conductor_.go(event);
    conductor_.kill(event.rank);
    if (event.rank != model::kNo) survivor_ = std::move(ranks_.at(static_cast<size_t>(event.rank)));
    join();
    start(1);
    return "";
  }

  // Everything left to do, without faults.
  void finish() {
    conductor_.free();
    join();
    if (survivor_.joinable()) survivor_.join();
  }

  // save(): the save, once it has begun. end(): the result that a rank was given: the checkpoint's
  // path, "failed: …", or "" if there is none yet.
  CheckpointCommit::Save save(int id) {
    const std::lock_guard lock(mutex_);
    return saves_.at(static_cast<size_t>(id));
  }
  std::string end(int rank, int id) {
    const std::lock_guard lock(mutex_);
    return ends_.at(static_cast<size_t>(rank)).at(static_cast<size_t>(id));
  }

 private:
  void start(int job) {
    const auto store = std::make_shared<store::MemoryStore>();
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.at(static_cast<size_t>(rank)) =
          std::thread([this, rank, job, store, &seat = conductor_.seat_of(rank)] {
            Conductor::enter(seat);
            be(rank, job, store);
            Conductor::leave();
          });
    }
  }

  void join() {
    for (std::thread& rank : ranks_) {
      if (rank.joinable()) rank.join();
    }
  }

  // A rank's process: whatever ends with the process is destroyed on this thread.
  void be(int rank, int job, const std::shared_ptr<store::Store>& store) {
    CheckpointCommit writer(Conductor::conducted(store), {.rank = rank,
                                                          .world_size = kRanks,
                                                          .timeout = std::chrono::seconds(20),
                                                          .total_limit = 1});
    const int first = job * kSaves;
    for (int id = first; id < (job == 0 ? kSaves : kIds); ++id) {
      const Conductor::Turn turn = Conductor::stop(Action::kBegin);
      if (turn.dead) return;
      const int64_t step = step_of(id, turn);
      std::string end;
      try {
        const CheckpointCommit::Save begun = writer.begin(folder_, step);
        if (rank == 0) note(saves_.at(static_cast<size_t>(id)), begun);
        end = writer.finish({.steps = step}, [&] { return write_piece(begun, rank, step); });
      } catch (const Error& error) {
        end = fmt::format("failed: {}", error.what());
      }
      if (Conductor::is_cut_off()) return;
      note(ends_.at(static_cast<size_t>(rank)).at(static_cast<size_t>(id)), end);
    }
  }

  // A rank that proceeds by itself uses the step of the first rank.
  int64_t step_of(int id, const Conductor::Turn& turn) {
    const std::lock_guard lock(mutex_);
    const int64_t own = turn.free ? 100 + id : turn.event.step;
    const int64_t first = steps_.try_emplace(id, own).first->second;
    return turn.free ? first : own;
  }

  template <class T>
  void note(T& place, const T& value) {
    const std::lock_guard lock(mutex_);
    place = value;
  }

  const std::string folder_;
  Conductor conductor_;
  std::mutex mutex_;
  std::map<int, int64_t> steps_;
  std::array<CheckpointCommit::Save, kIds> saves_;
  std::array<std::array<std::string, kIds>, kRanks> ends_;
  std::array<std::thread, kRanks> ranks_;
  std::thread survivor_;
};

class SaveSchedules : public CheckpointFiles {
 protected:
  // "", or what is wrong: every checkpoint has the pieces of one save and one step, from all ranks.
  std::string torn() {
    if (!std::filesystem::exists(checkpoints())) return "";
    for (const Entry& entry : list(checkpoints())) {
      ++seen_;
      if (!entry.manifest) return entry.path + " " + entry.reason;
      for (const Difference& difference : verify(entry.path))
        return entry.path + "/" + difference.file + " " + difference.reason;
      if (entry.manifest->files.size() != kRanks) return entry.path + " lacks a piece";
      for (const ManifestFile& file : entry.manifest->files) {
        if (!text_of(entry.path + "/" + file.name)
                 .ends_with(content(entry.manifest->save, entry.manifest->steps)))
          return entry.path + "/" + file.name + " is of another step";
      }
    }
    return "";
  }

  // Where the saves' folders are, by identity.
  std::map<std::string, Place> places() {
    std::map<std::string, Place> found;
    if (!std::filesystem::exists(checkpoints())) return found;  // no save could begin yet
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
      const auto name = read_name(entry.path().filename().string());
      if (!name) continue;  // the lock file
      const std::string manifest = entry.path() / kManifestName;
      const std::string save =
          !name->save.empty() ? name->save : parse(text_of(manifest), manifest).save;
      found[save] = name->kind == NameKind::kCommitted ? Place::kCommitted
                    : name->kind == NameKind::kPartial ? Place::kPartial
                                                       : Place::kHidden;
    }
    return found;
  }

  // "", or the difference from the model.
  std::string differs(ConductedJobs& run, const Path& path) {
    auto found = places();
    for (int id = 0; id < kIds; ++id) {
      const std::string save = run.save(id).identity;
      if (save.empty()) continue;  // it has not begun
      const auto [place, expected] =
          std::pair(found[save], path.folders.at(static_cast<size_t>(id)));
      if (place != expected)
        return fmt::format("the folder of save {} is at place {}, not {}", id,
                           static_cast<int>(place), static_cast<int>(expected));
      const std::string end = run.end(0, id);
      const End ended = end.empty() ? End::kOpen : has_failed(end) ? End::kFailed : End::kSaved;
      if (ended != path.ends.at(static_cast<size_t>(id)))
        return fmt::format("save {} ended differently: {}", id, end);
    }
    return "";
  }

  // Follows the model step by step.
  void follow(const Path& path) {
    std::filesystem::remove_all(checkpoints());
    ConductedJobs run(checkpoints());
    std::string done;
    for (const Event& event : path.events) {
      done += model::to_string({event});
      ASSERT_EQ(run.go(event), "") << done;
      ASSERT_EQ(torn(), "") << done;
    }
    ASSERT_EQ(differs(run, path), "") << done;
    run.finish();
    ASSERT_EQ(torn(), "") << done;
    for (int id = 0; id < kIds; ++id) {
      const std::string end = run.end(0, id);
      for (int rank = 1; rank < kRanks; ++rank) {
        const std::string other = run.end(rank, id);
        if (other.empty() || end.empty()) continue;  // it was killed
        ASSERT_TRUE(other == end || (has_failed(other) && has_failed(end)))
            << "save " << id << ": " << end << "\nrank " << rank << ": " << other << "\n"
            << done;
      }
    }
  }

  int seen_ = 0;  // number of checkpoints checked
};

// The full run covers every combination of the ranks' phases.
TEST_F(SaveSchedules, EveryKindOfEvent_IsWhatTheCodeDoes) {
  const bool is_full = std::getenv("COUPLER_TEST_SCHEDULES_FULL") != nullptr;
  const model::Found found = model::explore({}, {.contexts = is_full});
  size_t events = 0;
  for (const Path& path : found.paths) {
    follow(path);
    if (HasFatalFailure()) return;
    events += path.events.size();
  }
  std::printf("%zu schedules of %zu events, %d checkpoints checked\n", found.paths.size(), events,
              seen_);
  EXPECT_GT(found.paths.size(), is_full ? 500u : 30u);
  EXPECT_GT(seen_, is_full ? 10000 : 1000);
}

// Event sequences that break a weaker protocol do not break this one.
TEST_F(SaveSchedules, ThoseThatTearWithoutOneOfItsRules_LeaveWholeCheckpoints) {
  for (const auto& [protocol, violation] :
       {std::pair(model::kAsItWas, model::Violation::kTorn),
        std::pair(model::Protocol{.own_folder = false}, model::Violation::kTorn),
        std::pair(model::Protocol{.own_folder = false}, model::Violation::kForeign),
        std::pair(model::Protocol{.steps_compared = false, .begins_alike = false},
                  model::Violation::kTorn),
        std::pair(model::Protocol{.prunes_last = false}, model::Violation::kLost)}) {
    const model::Found found = model::explore(protocol, {.until = violation});
    ASSERT_TRUE(found.violations.contains(violation));
    const std::vector<Event>& events = found.violations.at(violation).events;
    std::filesystem::remove_all(checkpoints());
    ConductedJobs run(checkpoints());
    for (const Event& event : events) {
      run.go(event);  // as far as the code allows
      ASSERT_EQ(torn(), "") << model::to_string(events);
    }
    run.finish();
    ASSERT_EQ(torn(), "") << model::to_string(events);
  }
}

// Ranks at different steps report the difference.
TEST_F(SaveSchedules, BeginningAtDifferentSteps_IsRefused) {
  const model::Found found = model::explore({.steps_compared = false, .begins_alike = false},
                                            {.until = model::Violation::kTorn});
  ConductedJobs run(checkpoints());
  for (const Event& event : found.violations.at(model::Violation::kTorn).events) run.go(event);
  run.finish();
  bool named = false;
  for (int id = 0; id < kSaves; ++id)
    named = named || run.end(0, id).find("but rank 0 saves step") != std::string::npos;
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace coupler::checkpoint
