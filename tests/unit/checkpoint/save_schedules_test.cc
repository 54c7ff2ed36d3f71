// JobWriter itself, on a real folder, in the orders that the model of a save has looked at: one
// rank moves at a time, each store call and each write where the schedule has it.
#include <fmt/format.h>

#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/job_writer.h"
#include "checkpoint_files.h"
#include "io/safetensors_writer.h"
#include "rendezvous/memory_store.h"
#include "save_model.h"

namespace coupler::checkpoint {
namespace {

using model::Action;
using model::Event;
using model::Fault;
using model::kRanks;
using model::kSaves;

// Lets one rank move at a time: it stops before each action until it is told to go on, with which
// fault. free() lets all go on by themselves.
class Conductor {
 public:
  // On a rank's thread.
  Event await(int rank, Action action) {
    std::unique_lock lock(mutex_);
    Seat& seat = seats_.at(static_cast<size_t>(rank));
    seat.at = action;
    changed_.notify_all();
    changed_.wait(lock, [&] { return free_ || seat.next.has_value(); });
    seat.at.reset();
    const Event event = seat.next.value_or(Event{action, rank, Fault::kNone, 0, 0});
    seat.next.reset();
    return event;
  }
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    seats_.at(static_cast<size_t>(rank)).gone = true;
    changed_.notify_all();
  }
  // On the test's thread: returns once the rank has stopped again. Nothing happens where the rank
  // is about to do something else: the code found by itself that it cannot do this.
  bool go(const Event& event) {
    std::unique_lock lock(mutex_);
    Seat& seat = seats_.at(static_cast<size_t>(event.rank));
    const auto stopped = [&] { return seat.gone || (seat.at && !seat.next); };
    changed_.wait(lock, stopped);
    if (seat.gone || *seat.at != event.action) return false;
    seat.next = event;
    seat.at.reset();
    changed_.notify_all();
    changed_.wait(lock, stopped);
    return true;
  }
  void free() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }
  bool is_free() {
    const std::lock_guard lock(mutex_);
    return free_;
  }

 private:
  struct Seat {
    std::optional<Action> at;
    std::optional<Event> next;
    bool gone = false;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Seat, kRanks> seats_;
  bool free_ = false;
};

// One rank's view of the store: its calls are the places where ranks take turns.
class ConductedStore : public Store {
 public:
  ConductedStore(std::shared_ptr<Store> store, Conductor& conductor, int rank,
                 std::function<void(Fault)> before_commit)
      : store_(std::move(store)),
        conductor_(conductor),
        rank_(rank),
        before_commit_(std::move(before_commit)) {}

  void set(const std::string& key, const std::string& value) override {
    if (rank_ != 0 && !value.empty()) conductor_.await(rank_, Action::kReport);
    store_->set(key, value);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::nanoseconds timeout) override {
    if (key.ends_with("/files/1")) {
      commit_fault_ = conductor_.await(rank_, Action::kCommit).fault;
      before_commit_(commit_fault_);
    }
    if (key.ends_with("/result")) conductor_.await(rank_, Action::kLearn);
    const bool late = rank_ == 0 && commit_fault_ == Fault::kTimeout;
    return store_->get(key, late ? std::chrono::nanoseconds(0) : timeout);
  }
  int64_t add(const std::string& key, int64_t delta) override { return store_->add(key, delta); }

 private:
  std::shared_ptr<Store> store_;
  Conductor& conductor_;
  const int rank_;
  std::function<void(Fault)> before_commit_;
  Fault commit_fault_ = Fault::kNone;
};

class SaveSchedules : public CheckpointFiles {
 protected:
  static std::string content(const JobWriter::Save& save, int64_t step) {
    return fmt::format("save {} step {:03}", save.identity, step);
  }

  static std::vector<NamedFile> write_piece(const JobWriter::Save& save, int rank, int64_t step) {
    const std::string name = fmt::format("model-{}.safetensors", rank);
    const std::string text = content(save, step);
    safetensors::Writer file(
        save.path + "/" + name,
        {{"text", safetensors::DType::kU8, {static_cast<int64_t>(text.size())}}},
        {{kSaveKey, save.identity}});
    file.write("text", text.data(), text.size());
    return {{name, file.finish()}};
  }

  // What each rank was told of each save: its path, or "failed: …".
  using Ends = std::array<std::map<int, std::string>, kRanks>;

  void run_rank(int rank, JobWriter& writer, Conductor& conductor, JobWriter::Save& under_way,
                Ends& ends) {
    for (int save = 0; save < kSaves; ++save) {
      const Event start = conductor.await(rank, Action::kBegin);
      const int64_t step = conductor.is_free() ? 100 + save : start.step;
      try {
        const bool blocked = rank == 0 && start.fault == Fault::kFails;
        const JobWriter::Save begun = writer.begin(blocked ? at("blocked") : checkpoints(), step);
        if (rank == 0) under_way = begun;
        ends.at(static_cast<size_t>(rank))[save] = writer.finish({.steps = step}, [&] {
          const Event event = conductor.await(rank, Action::kWrite);
          if (event.fault == Fault::kFails)
            throw Error(ErrorCode::kIo, "cannot write: No space left on device");
          return write_piece(begun, rank, step);
        });
      } catch (const Error& error) {
        ends.at(static_cast<size_t>(rank))[save] = fmt::format("failed: {}", error.what());
      }
    }
    conductor.leave(rank);
  }

  // Makes what rank 0 is about to do fail, from outside.
  void prepare_fault(Fault fault, const JobWriter::Save& save) {
    if (fault == Fault::kFails) std::filesystem::remove(save.path + "/model-0.safetensors");
    if (fault == Fault::kStays) {
      const std::string hidden = save.path.substr(0, save.path.rfind('.')) + ".removed";
      put(hidden + "/in the way", "x");
    }
  }

  Ends run(const std::vector<Event>& events) {
    std::filesystem::remove_all(checkpoints());
    put(at("blocked"), "a file where a folder should be");
    const auto store = std::make_shared<MemoryStore>();
    Conductor conductor;
    Ends ends;
    JobWriter::Save under_way;  // rank 0's
    std::vector<std::unique_ptr<JobWriter>> writers;
    for (int rank = 0; rank < kRanks; ++rank) {
      writers.push_back(std::make_unique<JobWriter>(
          std::make_shared<ConductedStore>(store, conductor, rank,
                                           [&](Fault fault) { prepare_fault(fault, under_way); }),
          JobWriter::Options{.rank = rank, .world = kRanks, .timeout = std::chrono::seconds(20)}));
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        run_rank(rank, *writers[static_cast<size_t>(rank)], conductor, under_way, ends);
      });
    }
    for (const Event& event : events) {
      // Rank 0 reports to itself; a step moves nothing of JobWriter's.
      const bool inner = event.rank == 0 && event.action == Action::kReport;
      if (event.action != Action::kStep && !inner) conductor.go(event);
    }
    conductor.free();
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  static bool failed(const std::string& end) { return end.starts_with("failed: "); }

  static std::string describe(const std::vector<Event>& events) {
    std::string text;
    for (const Event& event : events) text += to_string(event) + "\n";
    return text;
  }

  // Every checkpoint has the pieces of one save and one step, of all ranks.
  int check(const std::vector<Event>& events) {
    int checkpoints_seen = 0;
    if (!std::filesystem::exists(checkpoints())) return 0;
    for (const Entry& entry : list(checkpoints())) {
      ++checkpoints_seen;
      EXPECT_TRUE(entry.manifest) << entry.path << " " << entry.reason << "\n" << describe(events);
      if (!entry.manifest) continue;
      EXPECT_TRUE(verify(entry.path).empty()) << describe(events);
      EXPECT_EQ(entry.manifest->files.size(), static_cast<size_t>(kRanks)) << describe(events);
      const JobWriter::Save save{entry.path, entry.manifest->save};
      for (const ManifestFile& file : entry.manifest->files) {
        std::ifstream stream(entry.path + "/" + file.name, std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(stream), {});
        EXPECT_TRUE(bytes.ends_with(content(save, entry.manifest->steps))) << file.name << "\n"
                                                                           << describe(events);
      }
    }
    return checkpoints_seen;
  }
};

TEST_F(SaveSchedules, EveryKindOfEventWithEveryFault_LeavesWholeCheckpoints) {
  const model::Found found = model::explore({});
  int seen = 0;
  for (const auto& events : found.paths) {
    const Ends ends = run(events);
    seen += check(events);
    for (const auto& [save, end] : ends[0]) {
      for (int rank = 1; rank < kRanks; ++rank) {
        const std::string& other = ends.at(static_cast<size_t>(rank)).at(save);
        EXPECT_TRUE(other == end || (failed(other) && failed(end)))
            << "save " << save << ": " << end << "\nrank " << rank << ": " << other << "\n"
            << describe(events);
      }
    }
    if (HasFailure()) return;
  }
  std::printf("%zu schedules, %d checkpoints\n", found.paths.size(), seen);
  EXPECT_GT(found.paths.size(), 50u);
  EXPECT_GT(seen, 50);
}

// The schedule that tore a checkpoint before saves had identities.
TEST_F(SaveSchedules, ThatToreACheckpoint_IsNowRefused) {
  const model::Found found = model::explore({.identity = false});
  ASSERT_NE(found.violation, "");
  const Ends ends = run(found.events);
  check(found.events);
  bool named = false;
  for (const auto& [save, end] : ends[0])
    named = named || (end.find("is at step") != std::string::npos &&
                      end.find("but rank 0 saves step") != std::string::npos);
  EXPECT_TRUE(named) << describe(found.events);
}

}  // namespace
}  // namespace coupler::checkpoint
