// Preemption: turns SIGTERM into a step at which all ranks end, the same on each, even if the
// signal reaches them at different times or reaches only one. Made once per process; the training
// thread calls due().
//
// A rank that got the signal publishes it in the store when its step ends. On every rank a thread
// waits for that key, then publishes how many steps its rank has ended. That rank does not end
// another step before it knows all ranks' numbers. All end at the step after the largest number:
// every rank reaches it, and none has passed it.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "store/store.h"

namespace coupler {

class Preemption {
 public:
  // store: used for this purpose only; null if the world size is 1.
  Preemption(std::shared_ptr<store::Store> store, int rank, int world_size,
             std::chrono::nanoseconds timeout);
  ~Preemption();  // restores the previous handler
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // Called at the end of a step. Returns whether all ranks must end now. Throws Error(kPeerLost,
  // kTimeout) if a rank does not report how many steps it has ended.
  bool due();

 private:
  void watch();

  const std::shared_ptr<store::Store> store_;
  const int rank_, world_size_;
  const std::chrono::nanoseconds timeout_;
  struct sigaction previous_ {};
  bool published_ = false;  // this rank has published the signal
  std::mutex mutex_;        // guards ended_ and requested_, which thread_ uses, too
  int64_t ended_ = 0;       // steps
  bool requested_ = false;
  std::optional<int64_t> last_;  // the step at which all ranks end
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace coupler
