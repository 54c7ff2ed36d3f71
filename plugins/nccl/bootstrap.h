// How the ranks meet: through the host's store every rank tells rank 0 which GPU and which NCCL it
// has, and gets the id of the new communicator, or the reason why there is none. Then NCCL connects
// them without blocking, so that the deadline holds. Collective; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <string>

#include "common/error.h"
#include "nccl/symbols.h"

namespace db::nccl {

struct Settings {
  bool high_priority = true;
  int32_t max_ctas = 0;  // 0: NCCL's choice
  std::string network;   // "": NCCL's choice
};

// Of every communicator: non-blocking, with the settings, which must outlive NCCL's use of it.
ncclConfig_t make_config(const Settings& settings);

// On device, which is current. On a failure nothing is left of *comm.
Failure connect(const db_communicator_params& params, const Settings& settings, int device,
                ncclComm_t* comm);

// Waits until comm, which is being set up, is ready; ends it where that fails or takes too long.
Failure wait_until_ready(ncclComm_t comm, const std::string& what, int64_t deadline_ns,
                         int64_t timeout_ns);

}  // namespace db::nccl
