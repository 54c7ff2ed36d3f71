// Watchdog: ends the process when an MPI call has not returned by its deadline, because MPI cannot
// cancel a call. One thread per process, started with the first Watch; it checks every 50 ms.
// Threads: a Watch is used by one thread at a time; the watchdog reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "common/op.h"

namespace db::mpi {

// What one communicator is currently doing inside MPI. begin() and end() cost a few nanoseconds.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_rank(int32_t rank) { rank_ = rank; }  // before the first begin()

  void begin(const Op& op) { begin("", op); }
  // For set-up calls that are not operations: name is a literal ("MPI_Init").
  void begin(const char* name, int64_t timeout_ns);
  void end() { deadline_.store(0, std::memory_order_release); }

  // Prints the error and ends the process with exit code 4. For an operation that is in flight
  // outside of any call and cannot be canceled.
  [[noreturn]] static void give_up(int32_t rank, const Op& op);

  bool inside() const { return deadline_.load(std::memory_order_relaxed) != 0; }
  void check(int64_t now);  // called by the watchdog

 private:
  void begin(const char* name, const Op& op);

  std::atomic<int64_t> deadline_{0};  // 0: not inside MPI
  std::mutex mutex_;                  // guards name_ and op_
  const char* name_ = "";             // "": op_ is an operation
  Op op_;
  int32_t rank_ = -1;
};

// Whether any communicator is inside an MPI call right now.
bool anyone_inside();

}  // namespace db::mpi
