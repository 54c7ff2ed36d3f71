// FailureBoard: why a communicator failed, for all of its ranks. When a rank fails, it aborts its
// bases so that no rank waits for it, and its peers then fail because of that. So the first rank
// writes its reason into the store before it aborts anything, and the others report that one.
// [any-thread]; settle() blocks for at most a few seconds.
#pragma once

#include <cstdint>
#include <utility>

#include "common/bootstrap_store.h"
#include "common/error.h"

namespace db::hierarchical {

class FailureBoard {
 public:
  FailureBoard(BootstrapStore store, int32_t rank) : store_(std::move(store)), rank_(rank) {}

  // The reason of the first rank that failed. It is own if this rank is the first, or if the store
  // cannot be reached.
  Failure settle(const Failure& own) const;

 private:
  const BootstrapStore store_;
  const int32_t rank_;
};

}  // namespace db::hierarchical
