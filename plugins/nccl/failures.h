// Errors of the two libraries as failures that name the operation and what may help. Pure
// functions; [any-thread] (per communicator: as NCCL allows).
#pragma once

#include <cstdint>
#include <string>

#include "common/error.h"
#include "nccl/library.h"

namespace db::nccl {

// Both kill the communicator: its ranks are out of step. what: "all_reduce of …".
Failure cuda_failure(cudaError_t error, const std::string& what);
// comm: its last error is included; may be NULL.
Failure nccl_failure(ncclResult_t result, ncclComm_t comm, const std::string& what);

// bytes of device memory that what needs and cannot get; 0: NCCL does not report how many.
Failure no_memory(uint64_t bytes, const std::string& what);

// The state of comm: an asynchronous error, ncclInProgress or ncclSuccess.
ncclResult_t state_of(ncclComm_t comm);
// The same, once it is no longer ncclInProgress or the deadline has passed.
ncclResult_t await_state(ncclComm_t comm, int64_t deadline_ns);

// Aborting and closing NCCL communicators. [any-thread]; comm must not be used afterwards.

// How long to wait for ncclCommAbort before leaving it running.
constexpr int64_t kAbortLimitNs = 5'000'000'000;

// ncclCommAbort, which ends operations in flight and waits until the GPU has stopped: on its own
// thread, since that wait cannot be interrupted. False: it has not returned within kAbortLimitNs,
// and the resources of comm must never be freed.
bool abort_communicator(ncclComm_t comm);

// For a communicator with nothing in flight: gives NCCL a moment to deliver what peers may still
// wait for (it is not collective: peers may be gone), and frees it. False as above.
bool close_communicator(ncclComm_t comm);

}  // namespace db::nccl
