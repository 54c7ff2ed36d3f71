// The db_communicator of this backend: the functions of the ABI in front of a Pipeline. Threads as
// the ABI says.
#pragma once

#include <coupler/distributed_backend.h>

#include "nccl/bootstrap.h"

namespace db::nccl {

// create of the ABI, on checked params.
db_status create_communicator(const db_communicator_params& params, const Settings& settings,
                              db_communicator** result, db_error* error);

}  // namespace db::nccl
