// The calls of NCCL that make up one operation of the ABI. Used by whoever holds the pipeline's
// lock, with the communicator's device current and the communicator ready for calls.
#pragma once

#include <vector>

#include "common/op.h"
#include "nccl/symbols.h"

namespace db::nccl {

// Where operations go.
struct Channel {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* token = nullptr;  // four bytes of device memory, for the barrier
  int32_t rank = 0;
  int32_t size = 1;
};

// What has to be given back when the calls have been launched.
struct Leftovers {
  void* scratch = nullptr;
  ncclRedOp_t reduction = ncclNumOps;  // ncclNumOps: none was made
};

// Any kind but SEND and RECV. A failure leaves the communicator between two operations: it is dead.
Failure start(const Channel& channel, const Op& op, Leftovers* left);

// SEND and RECV, as many as there are in one group, so that none of them waits for another.
Failure start_messages(const Channel& channel, const std::vector<const Op*>& ops);

void give_back(const Channel& channel, Leftovers* left);

}  // namespace db::nccl
