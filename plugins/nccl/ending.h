// The ends of NCCL's communicators. [any-thread]; afterwards nobody may use comm.
#pragma once

#include <cstdint>

#include "nccl/symbols.h"

namespace db::nccl {

// How long ncclCommAbort may take before it is left to itself.
constexpr int64_t kAbortLimitNs = 5'000'000'000;

// ncclCommAbort, which ends what is under way and waits until the GPU has seen it: on a thread of
// its own, since nothing else could end that wait. False: it has not returned within kAbortLimitNs,
// and what comm uses must stay for ever.
bool abort_communicator(ncclComm_t comm);

// For one with nothing under way: lets NCCL deliver what peers may still be waiting for, for a
// moment (it is not collective: peers may be gone), and frees it. False as above.
bool close_communicator(ncclComm_t comm);

}  // namespace db::nccl
