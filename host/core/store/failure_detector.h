// What a peer's silence means, according to the kernel: this machine's if the peer runs here, else
// the peer's, which acknowledges data even while the process is stopped. Plain functions,
// [any-thread].
#pragma once

#include <chrono>
#include <optional>

#include "base/process.h"
#include "store/peers.h"

namespace coupler::store {

struct SilentPeer {
  std::chrono::steady_clock::duration quiet;  // since it was last heard from
  int socket = -1;                            // the connection to it; -1: there is none yet
  const ProcessIdentity* here = nullptr;      // set if it runs on this machine
};

// nullopt: not enough to give the peer up. limit is backend.peer_timeout. A process held by a
// debugger is not lost; one that runs on this machine is merely slow, however long it is silent.
std::optional<PeerLoss::Reason> detect_failure(const SilentPeer& peer,
                                               std::chrono::steady_clock::duration limit);

// For a thread that checks for silence at every tick: how long it did not listen itself, stopped or
// starved. Messages of that time may still wait to be read, so it is not silence. Single-threaded.
class LocalPauses {
 public:
  using Clock = std::chrono::steady_clock;
  // Records that the thread listened at that time.
  void observed(Clock::time_point now) { looked_ = now; }
  // At a check: how long the thread did not listen before; zero if the check came in time.
  Clock::duration local_pause(Clock::time_point now, Clock::duration tick) {
    const auto late = now - looked_ - tick;
    looked_ = now;
    return late > tick ? late : Clock::duration::zero();
  }

 private:
  Clock::time_point looked_ = Clock::now();
};

// "rank 1 (process 77) is stopped"
std::string describe_loss(int rank, long pid, PeerLoss::Reason reason);

}  // namespace coupler::store
