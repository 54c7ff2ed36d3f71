// Aborting and closing NCCL communicators. [any-thread]; comm must not be used afterwards.
#pragma once

#include <cstdint>

#include "nccl/symbols.h"

namespace db::nccl {

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
