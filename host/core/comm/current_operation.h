// CurrentOperation: the blocking operation that a communicator's thread is in the backend with, for
// its watchdog and for reports about what a rank is doing. One thread at a time enters and leaves,
// which costs a few stores; reading is [any-thread].
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "comm/flight_recorder.h"

namespace coupler::comm {

// One operation from its submission to its end.
struct Operation {
  uint64_t sequence = 0;  // SEND and RECV: among messages in that direction with that peer
  Fingerprint fingerprint;
  int peer = -1;  // SEND and RECV
};

class CurrentOperation {
 public:
  void enter(const Operation& operation) {
    // Release: whoever reads one of these also sees that the operation before has left.
    sequence_.store(operation.sequence, std::memory_order_release);
    what_.store(operation.fingerprint.what, std::memory_order_release);
    shown_.store(operation.fingerprint.shown, std::memory_order_release);
    peer_.store(operation.peer, std::memory_order_release);
    // The full fence pairs with the watchdog's: either it sees the version or it is seen asleep.
    version_.fetch_add(1, std::memory_order_seq_cst);
  }
  void leave() {
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Rises when an operation enters and when it leaves; odd in between.
  uint64_t version() const { return version_.load(std::memory_order_seq_cst); }
  static bool is_inside(uint64_t version) { return (version & 1) != 0; }

  // The operation of that version. Unset if there is none, and if the version is not the current
  // one: an operation must not be taken for one that began earlier.
  std::optional<Operation> of(uint64_t version) const {
    if (!is_inside(version)) return std::nullopt;
    Operation operation;
    operation.sequence = sequence_.load(std::memory_order_acquire);
    operation.fingerprint.what = what_.load(std::memory_order_acquire);
    operation.fingerprint.shown = shown_.load(std::memory_order_acquire);
    operation.peer = peer_.load(std::memory_order_acquire);
    if (version_.load(std::memory_order_acquire) != version) return std::nullopt;
    return operation;
  }

 private:
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> sequence_{0}, what_{0}, shown_{0};
  std::atomic<int> peer_{-1};
};

}  // namespace coupler::comm
