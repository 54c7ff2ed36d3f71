// Watchdog: one thread per communicator, which frees threads that are stuck in the backend. It
// wakes about 30 times a second while there are operations and sleeps otherwise. It detects the
// first error of another rank, and deadlines if the backend itself cannot end an operation.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/state.h"

namespace coupler::comm {

class Watchdog {
 public:
  explicit Watchdog(CommunicatorState& state);
  ~Watchdog();  // joins
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Costs one load while the thread is awake.
  void wake_if_asleep() {
    if (asleep_.load(std::memory_order_seq_cst)) wake();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stuck {
    Operation operation;
    Clock::time_point since;
  };

  void wake();
  void run();
  bool busy() const;
  bool anything_pending() const;
  void check(Clock::time_point now);
  void publish_place();
  std::optional<Stuck> oldest(Clock::time_point now);
  void check_deadline(const Stuck& stuck, Clock::duration age);
  void check_peers(const Stuck& stuck, Clock::time_point now);
  void check_recorder(const Stuck& stuck, Clock::duration age);
  void check_store(Clock::time_point now, Clock::duration age);
  // After the communicator has ended: if its backend cannot free a thread, ends the process.
  void free_stuck_threads();

  CommunicatorState& state_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_ = false;
  std::atomic<bool> asleep_{false};
  uint64_t last_version_ = 0;  // of the current operation; owned by the thread, like those below
  Clock::time_point version_since_;
  Clock::time_point store_checked_;
  bool store_failed_ = false;
  std::string place_;  // as other ranks see it
  std::thread thread_;
};

}  // namespace coupler::comm
