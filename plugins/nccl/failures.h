// What the two libraries return, as failures that say what was being done, in which rank, and what
// may help. Pure functions; [any-thread] (of one communicator: as NCCL says).
#pragma once

#include <string>

#include "common/error.h"
#include "nccl/symbols.h"

namespace db::nccl {

// Both kill the communicator: its ranks are no longer at the same place. what: "all_reduce of …".
Failure cuda_failure(cudaError_t error, const std::string& what);
// comm: whose last error is asked for; may be NULL.
Failure nccl_failure(ncclResult_t result, ncclComm_t comm, const std::string& what);

// bytes of device memory for what, which are not to be had; 0: NCCL does not say how many.
Failure no_memory(uint64_t bytes, const std::string& what);

}  // namespace db::nccl
