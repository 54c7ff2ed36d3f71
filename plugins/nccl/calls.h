// The operations of the ABI in terms of NCCL: which of them it supports, [any-thread], and the
// calls that make up one. For these the caller holds the queue's lock; the communicator's device
// must be current and the communicator ready for calls.
#pragma once

#include <coupler/distributed_backend.h>

#include <vector>

#include "common/op.h"
#include "nccl/library.h"

namespace db::nccl {

// The score for supports(): 2 for native NCCL operations, 1 for those made of several NCCL calls, 0
// for what NCCL lacks (16-bit integers and bitwise operations can be moved but not reduced).
int32_t score_of(const db_op& op);

// The communicator and stream on which operations run.
struct LaunchContext {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* token = nullptr;  // four bytes of device memory, for the barrier
  int32_t rank = 0;
  int32_t size = 1;
};

// Resources to free once the calls have been launched.
struct LaunchResources {
  void* scratch = nullptr;
  ncclRedOp_t reduction = ncclNumOps;  // ncclNumOps: none was made
};

// Any kind except SEND and RECV. A failure leaves the communicator in mid-operation: it is dead.
Failure start(const LaunchContext& context, const Op& op, LaunchResources* resources);

// All given SEND and RECV operations in one group, so that none of them waits for another.
Failure start_messages(const LaunchContext& context, const std::vector<const Op*>& ops);

void release_resources(const LaunchContext& context, LaunchResources* resources);

}  // namespace db::nccl
