// Synchronizer: how the ranks of a communicator wait for each other in a collective.
//
// Every rank enters every collective: it shows its number and fingerprint, and goes on once all the
// others have shown theirs. So when a rank has entered collective n, all have left collective n -
// 1, and what they read in it may be overwritten; slots and entries alternate, because a rank fills
// its next ones before the others have come. Ranks that called different things find out before
// they touch data. Within a collective that moves data in chunks, steps work likewise: a rank
// publishes a step when its part of a chunk is there, and waits for the step of the others.
//
// A wait spins briefly if every rank has a core, or else yields its core a few times, and then
// sleeps, until its word is reached, the communicator is aborted or has failed, the awaited rank
// has died or left, or the deadline passes. Only the last rank to come wakes the sleepers. Thread
// rule: one thread at a time (the holder of the queue's turn); abort() from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/fingerprint.h"
#include "common/op.h"
#include "shm/peers.h"
#include "shm/segment.h"

namespace db::shm {

// What goes on while a rank waits: messages between two ranks.
class Background {
 public:
  virtual bool is_pending() const = 0;
  // Moves what can be moved; never blocks.
  virtual void advance() = 0;

 protected:
  ~Background() = default;
};

// Whether a counter that wraps around has reached a value.
inline bool is_reached(const std::atomic<uint32_t>& word, uint32_t wanted,
                       std::memory_order order = std::memory_order_acquire) {
  return static_cast<int32_t>(word.load(order) - wanted) >= 0;
}

// How a blocking operation waits before it sleeps.
struct Patience {
  int64_t ns = 0;       // at most; 0: it sleeps at once
  bool yields = false;  // there are more ranks than cores: it yields its core instead of spinning
};

class Synchronizer {
 public:
  Synchronizer(Segment* segment, Peers* peers, int32_t rank, const Patience& patience);
  void set_background(Background* background) { background_ = background; }

  // Begins the next collective. Then its data may be written: into the slot of its number, or into
  // its entry if it fits there.
  uint32_t begin(const Op& op);
  // Shows that this rank has entered it, with its data.
  void enter();
  // Waits until all ranks have entered it, and compares what they called.
  Failure await_entries();

  // Publishes this rank's next step; returns its number.
  uint32_t publish();
  // Waits until all ranks have published step.
  Failure await(uint32_t step);
  // Fails if a rank has left: then what was just read from its own buffers may have been changed.
  Failure require_all_present() const;

  // The number of the current step; the same on all ranks between two collectives.
  uint32_t step() const { return step_; }
  uint32_t number() const { return number_; }

  // What ends a wait of op for peer before its word is reached; OK: nothing does. asks_system: also
  // whether the process has died, which is a system call.
  Failure interruption(const Op& op, int32_t peer, bool asks_system) const;
  // How long op may spin for a message.
  int64_t spin_ns(const Op& op) const;

  // Ends every wait, now and later. Never blocks.
  void abort();
  bool is_aborted() const { return aborted_.load(std::memory_order_acquire); }

 private:
  Failure wait(const std::atomic<uint32_t>& word, uint32_t wanted, int32_t peer);
  Failure sleep_until(const std::atomic<uint32_t>& word, uint32_t wanted, int32_t peer);
  int64_t awake_ns(const Op& op) const;
  bool is_soon_reached(const std::atomic<uint32_t>& word, uint32_t wanted);
  bool spin_until(const std::atomic<uint32_t>& word, uint32_t wanted, int64_t longest) const;
  bool yield_until(const std::atomic<uint32_t>& word, uint32_t wanted, int64_t longest);
  Failure too_late(int32_t peer) const;
  // After this rank's word was stored: wakes the sleepers if the words of all ranks, as word_of
  // gives them, have reached wanted.
  template <class WordOf>
  void wake_if_last(uint32_t wanted, const WordOf& word_of) const;

  Segment* const segment_;
  Peers* const peers_;
  const int32_t rank_, size_;
  const Patience patience_;
  Background* background_ = nullptr;
  const Op* op_ = nullptr;
  Fingerprint called_;
  uint32_t number_ = 0;
  uint32_t step_ = 0;
  int32_t penalty_ = 0;             // how many waits sleep at once after the next unsuccessful one
  int32_t skips_ = 0;               // how many of them are left
  int64_t contended_until_ns_ = 0;  // when it may yield again
  std::atomic<bool> aborted_{false};
};

}  // namespace db::shm
