// One operation of a queue from submit() to its completion and release(). The queue's lock
// guards everything except the pointer to the queue.
#pragma once

#include <vector>

#include "nccl/op_queue.h"

namespace db::nccl {

struct OpQueue::Request {
  OpQueue* owner = nullptr;
  Op op;
  std::vector<uint64_t> counts;  // op's count arrays point here
  LaunchResources resources;
  cudaEvent_t ready = nullptr;  // recorded when the input data is ready
  cudaEvent_t done = nullptr;   // recorded when the operation is complete
  int64_t submitted_ns = 0;
  Stage stage = Stage::kQueued;
  bool good = false;  // for kDone: completed successfully
  bool released = false;
  Request* next = nullptr;

  static Request& of(db_request* request) { return *reinterpret_cast<Request*>(request); }
  db_request* handle() { return reinterpret_cast<db_request*>(this); }
};

}  // namespace db::nccl
