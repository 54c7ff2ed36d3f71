// Communicator: what is under a db_communicator of this backend. Thread rule: as tagged in
// distributed_backend.h.
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/memory.h>

#include <cstdint>
#include <memory>

#include "common/bootstrap_store.h"
#include "common/error.h"
#include "common/serial_queue.h"
#include "hierarchical/collectives.h"
#include "hierarchical/failure_board.h"
#include "hierarchical/group.h"
#include "hierarchical/operation_executor.h"

namespace db::hierarchical {

struct Communicator : db_communicator {
  Communicator(std::unique_ptr<Group> chosen, BootstrapStore shared, bool is_root,
               int64_t timeout_ns, const Settings& chosen_settings);

  const std::unique_ptr<Group> group;
  const BootstrapStore store;
  const bool owns_store;  // made by create: the host's store must not be used after its destruction
  const int64_t default_timeout_ns;
  const Settings settings;
  const FailureBoard board;
  db_peer_memory memory{};  // of the nearest base; without functions if that has none
  uint64_t splits = 0;      // [comm-serial]
  OperationExecutor executor;
  SerialQueue queue;
};

// Builds the communicator from the bases of params, which outlive it.
Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result);

}  // namespace db::hierarchical
