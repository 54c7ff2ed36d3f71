// FailureReporter: how the ranks of a communicator agree on why it died. The first rank to fail
// writes the cause into the store before it closes its connections. A rank that then finds a
// connection closed reads it there, so every survivor names the rank that died and not the
// messenger. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "gloo_cpu/gloo_transport.h"

namespace db::gloo_cpu {

class FailureReporter {
 public:
  FailureReporter(BootstrapStore store, int32_t rank, int32_t size);

  // What this rank must report for the failure it saw. Makes two or three store calls and waits at
  // most two seconds; if the store fails, the failure stands as seen.
  Failure settle(const Failure& seen) const;

  // This rank's collective number `sequence` timed out.
  void report_timeout(uint64_t sequence) const;
  // The ranks that have not reported it within a tenth of a second: they are somewhere else.
  std::vector<int32_t> ranks_without_timeout(uint64_t sequence) const;

 private:
  BootstrapStore store_;
  int32_t rank_;
  int32_t size_;
};

}  // namespace db::gloo_cpu
