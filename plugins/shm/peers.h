// Peers: whether the other ranks of a communicator still take part, and why it failed if it did.
//
// A rank holds one descriptor for every other rank's process, its lifeline, which becomes readable
// when that process ends: a pidfd that the process opened for itself, so that neither a hidden
// /proc nor a PID namespace matters, or else the reading end of a pipe whose writing end only that
// process has. A rank that leaves otherwise says so in the segment. Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/local_socket.h"
#include "shm/segment.h"

namespace db::shm {

// What a process gives its peers, and what it keeps open itself as long as it takes part.
struct Lifeline {
  Descriptor shown, kept;
};

// Empty descriptors on failure: see errno.
Lifeline open_lifeline();

class Peers {
 public:
  // lifelines: by rank; empty for this rank.
  Peers(Segment* segment, int32_t rank, std::vector<Descriptor> lifelines, Descriptor kept);

  bool has_died(int32_t rank) const;  // one system call
  bool has_left(int32_t rank) const {
    return segment_->control(rank).left.load(std::memory_order_acquire) != 0;
  }
  // " (it is stopped)" if the system says so, else "".
  std::string state_of(int32_t rank) const;

  // Whether a rank has reported why the communicator failed.
  bool has_cause() const {
    return segment_->cause().state.load(std::memory_order_acquire) == kReported;
  }
  // What this rank must report for the failure it saw: if it is the first, the others will report
  // it as well, else what the first one saw.
  Failure settle(const Failure& seen) const;

  // This rank takes part in nothing more; wakes all threads that sleep on a word of the segment.
  void leave() const;

  // The error of an operation that needs a rank that has died or left.
  Failure lost(int32_t rank) const;

 private:
  static constexpr uint32_t kReporting = 1, kReported = 2;

  Segment* const segment_;
  const int32_t rank_;
  const std::vector<Descriptor> lifelines_;
  const Descriptor kept_;
};

}  // namespace db::shm
