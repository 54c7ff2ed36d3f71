// The db_communicator of this backend: the ABI's functions in front of an OpQueue. Thread rules are
// the ABI's.
#pragma once

#include <coupler/distributed_backend.h>

#include "nccl/bootstrap.h"

namespace db::nccl {

// create of the ABI, on validated params. *result is set on success only.
Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result);

}  // namespace db::nccl
