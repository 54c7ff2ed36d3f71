// How the ranks meet: through the host's store, every rank sends rank 0 its GPU and NCCL version,
// and gets back the id of the new communicator or the reason why there is none. Then NCCL connects
// the ranks without blocking, so that the deadline is kept. Collective; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <string>

#include "common/error.h"
#include "nccl/library.h"

namespace db::nccl {

struct Settings {
  bool high_priority = true;
  int32_t max_ctas = 0;  // 0: NCCL's choice
  std::string network;   // "": NCCL's choice
};

// For every communicator: non-blocking, with the settings, which must outlive NCCL's use of it.
ncclConfig_t make_config(const Settings& settings);

// Connects on device, which must be current. After a failure nothing of *comm is left.
Failure connect(const db_communicator_params& params, const Settings& settings, int device,
                ncclComm_t* comm);

// Waits until comm, which is being set up, is ready; aborts it on failure or timeout.
Failure wait_until_ready(ncclComm_t comm, const std::string& what, int64_t deadline_ns,
                         int64_t timeout_ns);

}  // namespace db::nccl
