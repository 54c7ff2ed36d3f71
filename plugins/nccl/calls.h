// The NCCL calls that make up one operation of the ABI. The caller holds the pipeline's lock; the
// communicator's device must be current and the communicator ready for calls.
#pragma once

#include <vector>

#include "common/op.h"
#include "nccl/symbols.h"

namespace db::nccl {

// The communicator and stream on which operations run.
struct Channel {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* token = nullptr;  // four bytes of device memory, for the barrier
  int32_t rank = 0;
  int32_t size = 1;
};

// Resources to free once the calls have been launched.
struct Leftovers {
  void* scratch = nullptr;
  ncclRedOp_t reduction = ncclNumOps;  // ncclNumOps: none was made
};

// Any kind except SEND and RECV. A failure leaves the communicator in mid-operation: it is dead.
Failure start(const Channel& channel, const Op& op, Leftovers* left);

// All given SEND and RECV operations in one group, so that none of them waits for another.
Failure start_messages(const Channel& channel, const std::vector<const Op*>& ops);

void give_back(const Channel& channel, Leftovers* left);

}  // namespace db::nccl
