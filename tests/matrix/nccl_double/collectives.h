// The "kernels" of the NCCL double: what a stream performs for one call. They touch only the call's
// buffers and the group's memory. false: aborted.
#pragma once

#include <coupler/distributed_backend.h>

#include "shared_group.h"

namespace nccl_double {

// How values are combined, in the terms of the ABI.
struct Combine {
  db_dtype dtype = 0;
  db_reduce reduce = 0;
  double scale = 1;  // of every contribution: PREMUL_SUM, and AVG of floating types
};

struct Collective {
  enum Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter } kind;
  const char* send = nullptr;
  char* recv = nullptr;
  size_t count = 0;
  size_t element = 1;
  int root = 0;
  Combine combine;
};

bool perform(const Collective& call, SharedGroup& group, int rank, int size,
             const Aborted& aborted);

}  // namespace nccl_double
