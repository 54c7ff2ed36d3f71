// The communicator of this backend: the ABI's functions on top of a queue and its executor.
// Thread rule: as tagged in distributed_backend.h.
#pragma once

#include <coupler/distributed_backend.h>

namespace db::gloo_cpu {

// DistributedBackend.create. Never throws.
db_status create_communicator(const db_communicator_params* params, db_communicator** result,
                              db_error* error);

}  // namespace db::gloo_cpu
