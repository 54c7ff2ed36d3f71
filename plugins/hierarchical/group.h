// Group: what a communicator of this backend consists of: its ranks' places and its bases. Built
// collectively from the two bases; constant afterwards. abort() is [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <memory>

#include "common/error.h"
#include "hierarchical/base.h"
#include "hierarchical/layout.h"

namespace db::hierarchical {

// A communicator until it is part of a Group; destroyed with it if owned.
struct Transport {
  db_communicator* communicator = nullptr;
  bool owned = false;
};

struct Group {
  Layout layout;
  std::unique_ptr<Base> local;   // the ranks of this machine
  std::unique_ptr<Base> across;  // all ranks, with their own numbers
  std::unique_ptr<Base> lane;    // this rank's lane; NULL if it has none, or if whole is set

  // One base alone connects all ranks in their order, so it carries every operation; else NULL.
  const Base* whole() const {
    if (layout.is_one_machine()) return local.get();
    return layout.is_one_rank_each() ? across.get() : nullptr;
  }

  // The base that moves the caller's buffers between the ranks of this machine.
  const Base& nearest() const {
    const bool is_alone = !layout.is_one_machine() && layout.is_one_rank_each();
    return is_alone ? *across : *local;
  }

  void abort() const;

  // Collective over the ranks of across. Takes over both transports, whatever the outcome. Fails
  // alike on all ranks if their places contradict each other.
  static Failure build(Transport local, Transport across, int64_t deadline_ns,
                       std::unique_ptr<Group>* result);
};

// Whether the backend of that communicator can split it.
bool can_split(const db_communicator* communicator);

}  // namespace db::hierarchical
