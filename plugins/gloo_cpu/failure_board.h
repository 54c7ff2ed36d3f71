// FailureBoard: how the ranks of a communicator agree on why it died. The first rank to fail writes
// the cause into the store before it closes its connections; whoever then finds a connection closed
// reads it there, so that every survivor names the rank that died and not the messenger.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bootstrap_store.h"
#include "common/error.h"

namespace db::gloo_cpu {

class FailureBoard {
 public:
  FailureBoard(BootstrapStore store, int32_t rank, int32_t size);

  // What this rank shall report for what it saw. Asks the store two or three times, waits for it
  // at most two seconds; without a store what was seen stands.
  Failure settle(const Failure& seen) const;

  // This rank's collective number `sequence` timed out.
  void say_late(uint64_t sequence) const;
  // The ranks that have not said so a tenth of a second from now: they are somewhere else.
  std::vector<int32_t> not_late(uint64_t sequence) const;

 private:
  BootstrapStore store_;
  int32_t rank_;
  int32_t size_;
};

}  // namespace db::gloo_cpu
