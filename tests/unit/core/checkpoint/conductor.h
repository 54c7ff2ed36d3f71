// Conductor: the ranks of a job, here threads, take turns at the calls that the model of a save
// distinguishes. Each rank stops before such a call, to a store or to the disk
// (conducted_calls.cc), until it is told to make it, and with which fault. Static members are
// called by the ranks, all others by the test's thread.
#pragma once

#include <array>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "save_model.h"
#include "store/store.h"

namespace coupler::checkpoint {

class Conductor {
 public:
  // What a rank does next. free: it proceeds by itself, without a fault.
  struct Turn {
    model::Event event;
    bool free = false;
    bool dead = false;  // its process was killed: the call has no effect
  };

  Conductor();

  struct Seat;
  Seat& seat_of(int rank) { return *at_.at(static_cast<size_t>(rank)); }
  // The calling thread acts as that rank until it leaves.
  static void enter(Seat& seat) { seat_ = &seat; }
  static void leave();
  // Called before a conducted call. A thread that is not a rank proceeds at once.
  static Turn stop(model::Action action);
  static bool is_rank();
  static bool is_dead();  // its process was killed
  // Its process or its job was killed: it cannot tell anyone anything.
  static bool is_cut_off();

  // Makes that rank take that step, and returns once it has stopped again or waits for another
  // rank: "", or what the rank was about to do instead.
  std::string go(const model::Event& event);
  // Ends all ranks except `survivor`, which is model::kSurvivor from now on.
  void kill(int survivor);
  // All ranks proceed by themselves.
  void free();

  // One rank's view of its job's store, with conducted calls.
  static std::shared_ptr<store::Store> conducted(std::shared_ptr<store::Store> store);

 private:
  friend class ConductedStore;
  static thread_local Seat* seat_;  // of the calling thread

  std::mutex mutex_;
  std::condition_variable changed_;  // wakes the test
  std::list<Seat> seats_;
  std::array<Seat*, model::kRanks + 1> at_{};
  bool free_ = false;
};

// The state of one process.
struct Conductor::Seat {
  explicit Seat(Conductor* all) : conductor(all) {}
  bool is_still() const { return gone || waits || (at && !next); }

  Conductor* const conductor;
  std::condition_variable changed;  // wakes the rank
  std::optional<model::Action> at;  // the call before which it has stopped
  std::optional<model::Event> next;
  bool waits = false;    // for another rank
  bool gone = false;     // it has left
  bool dead = false;     // its process was killed
  bool cut_off = false;  // its job was killed
};

}  // namespace coupler::checkpoint
