// Conductor: the ranks of a job, here threads, take turns at what the model of a save tells apart:
// each stops before such a call, of a store or to the disk (conducted_calls.cc), until it is told
// to make it, and with which fault. What is static is for the ranks, all else for the test's
// thread.
#pragma once

#include <array>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rendezvous/store.h"
#include "save_model.h"

namespace coupler::checkpoint {

class Conductor {
 public:
  // What a rank is to do. free: by itself, without a fault.
  struct Turn {
    model::Event event;
    bool free = false;
    bool dead = false;  // its process was killed: the call has no effect
  };

  Conductor();

  struct Seat;
  Seat& seat_of(int rank) { return *at_.at(static_cast<size_t>(rank)); }
  // The calling thread is that rank from now on, until it leaves.
  static void enter(Seat& seat) { seat_ = &seat; }
  static void leave();
  // At a call of the calling thread. One that is no rank's goes on.
  static Turn stop(model::Action action);
  static bool is_rank();
  static bool is_dead();  // its process was killed
  // That, or its job was: there is nobody whom it can tell anything.
  static bool is_cut_off();

  // Makes that rank do that, and returns once it has stopped again, or waits for another rank. ""
  // or what it was about to do instead.
  std::string go(const model::Event& event);
  // Ends all ranks but `survivor`, which is model::kSurvivor from now on.
  void kill(int survivor);
  // All go on by themselves.
  void free();

  // One rank's view of its job's store, whose calls are conducted.
  static std::shared_ptr<Store> conducted(std::shared_ptr<Store> store);

 private:
  friend class ConductedStore;
  static thread_local Seat* seat_;  // of the calling thread

  std::mutex mutex_;
  std::condition_variable changed_;  // for the test
  std::list<Seat> seats_;
  std::array<Seat*, model::kRanks + 1> at_{};
  bool free_ = false;
};

// Of one process.
struct Conductor::Seat {
  explicit Seat(Conductor* all) : conductor(all) {}
  bool is_still() const { return gone || waits || (at && !next); }

  Conductor* const conductor;
  std::condition_variable changed;  // for the rank
  std::optional<model::Action> at;  // where it has stopped
  std::optional<model::Event> next;
  bool waits = false;    // for another rank
  bool gone = false;     // it has left
  bool dead = false;     // its process was killed
  bool cut_off = false;  // its job was
};

}  // namespace coupler::checkpoint
