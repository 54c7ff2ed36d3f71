// Watchdog: ends the process when an MPI call has not returned by its deadline, because MPI cannot
// cancel a call. One thread per process, started with the first Watch; it checks every 50 ms.
// Threads: a Watch is used by one thread at a time; the watchdog reads it.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/op.h"

namespace db::mpi {

// What one communicator is currently doing inside MPI. begin() and end() cost a few stores.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_rank(int32_t rank) { rank_.store(rank, std::memory_order_relaxed); }

  void begin(const Op& op) { begin(op.kind, nullptr, op.dtype, op.reduce, op); }
  // For set-up calls that are not operations: name is a literal ("MPI_Init").
  void begin(const char* name, int64_t timeout_ns);
  void end() { deadline_.store(0, std::memory_order_release); }

  // Prints the error and ends the process with exit code 4. For an operation that is in flight
  // outside of any call and cannot be canceled.
  [[noreturn]] static void give_up(int32_t rank, const Op& op);

  bool inside() const { return deadline_.load(std::memory_order_relaxed) != 0; }
  void check(int64_t now) const;  // called by the watchdog

 private:
  void begin(db_kind kind, const char* name, db_dtype dtype, db_reduce reduce, const Op& op) {
    kind_.store(kind, std::memory_order_relaxed);
    dtype_.store(dtype, std::memory_order_relaxed);
    reduce_.store(reduce, std::memory_order_relaxed);
    name_.store(name, std::memory_order_relaxed);
    size_.store(op.count != 0 ? op.count : op.send_size, std::memory_order_relaxed);
    sequence_.store(op.sequence, std::memory_order_relaxed);
    timeout_.store(op.timeout_ns, std::memory_order_relaxed);
    deadline_.store(op.deadline_ns, std::memory_order_release);
  }

  std::atomic<int64_t> deadline_{0};  // 0: not inside MPI
  std::atomic<int64_t> timeout_{0};
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<const char*> name_{nullptr};
  std::atomic<int32_t> kind_{0};
  std::atomic<int32_t> dtype_{0};
  std::atomic<int32_t> reduce_{0};
  std::atomic<int32_t> rank_{-1};
};

// Whether any communicator is inside an MPI call right now.
bool anyone_inside();

}  // namespace db::mpi
