// What the silence of a peer means, asked of the kernels: of this machine where the peer is here
// too, else of its own, which acknowledges what arrives even while the process stands still. Plain
// functions, [any-thread].
#pragma once

#include <chrono>
#include <optional>

#include "rendezvous/peers.h"
#include "rendezvous/process_identity.h"

namespace coupler {

struct Silence {
  std::chrono::steady_clock::duration quiet;  // since it was last heard of
  int socket = -1;                            // the connection to it; -1: there is none yet
  const ProcessIdentity* here = nullptr;      // where it runs on this machine
};

// Nothing: not enough to give it up. limit is backend.peer_timeout. A process that a debugger holds
// is not lost, and one of this machine that runs is merely slow, however long it says nothing.
std::optional<PeerLoss::Reason> judge(const Silence& silence,
                                      std::chrono::steady_clock::duration limit);

// Tells of one who looks for silence at every tick how long it did not listen: stopped, or starved.
// What was not heard meanwhile may be waiting to be read, and is no silence. Of one thread.
class ListeningClock {
 public:
  using Clock = std::chrono::steady_clock;
  // It listens at that time.
  void listened(Clock::time_point now) { looked_ = now; }
  // At a look: how long it did not listen before; zero where the look came about in time.
  Clock::duration held_up(Clock::time_point now, Clock::duration tick) {
    const auto late = now - looked_ - tick;
    looked_ = now;
    return late > tick ? late : Clock::duration::zero();
  }

 private:
  Clock::time_point looked_ = Clock::now();
};

// "rank 1 (process 77) is stopped"
std::string describe_loss(int rank, long pid, PeerLoss::Reason reason);

}  // namespace coupler
