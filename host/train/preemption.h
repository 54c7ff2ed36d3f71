// Preemption: SIGTERM becomes a step at which all ranks end, the same on each, though the signal
// reaches them at different times, or one of them only. Made once a process; due() is the training
// thread's.
//
// A rank that has the signal says so in the store when its step ends. On every rank a thread waits
// for that word; it says in turn how many steps its rank has ended, and that rank ends no further
// one before it knows all numbers. The step after the largest is the one: every rank reaches it,
// and none has passed it.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "rendezvous/store.h"

namespace coupler {

class Preemption {
 public:
  // store: of this purpose alone; null where world is 1.
  Preemption(std::shared_ptr<Store> store, int rank, int world, std::chrono::nanoseconds timeout);
  ~Preemption();  // SIGTERM acts as before
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // At the end of a step: whether all ranks are to end now. Throws Error(kPeerLost, kTimeout) where
  // a rank does not say how far it is.
  bool due();

 private:
  void watch();

  const std::shared_ptr<Store> store_;
  const int rank_, world_;
  const std::chrono::nanoseconds timeout_;
  struct sigaction previous_ {};
  bool told_ = false;  // the store, by this rank
  std::mutex mutex_;   // guards what follows
  int64_t ended_ = 0;  // steps
  bool heard_ = false;
  std::optional<int64_t> last_;  // the step at which all end
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace coupler
