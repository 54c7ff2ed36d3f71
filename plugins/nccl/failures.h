// Errors of the two libraries as failures that name the operation and what may help. Pure
// functions; [any-thread] (per communicator: as NCCL allows).
#pragma once

#include <string>

#include "common/error.h"
#include "nccl/symbols.h"

namespace db::nccl {

// Both kill the communicator: its ranks are out of step. what: "all_reduce of …".
Failure cuda_failure(cudaError_t error, const std::string& what);
// comm: its last error is included; may be NULL.
Failure nccl_failure(ncclResult_t result, ncclComm_t comm, const std::string& what);

// bytes of device memory that what needs and cannot get; 0: NCCL does not report how many.
Failure no_memory(uint64_t bytes, const std::string& what);

}  // namespace db::nccl
