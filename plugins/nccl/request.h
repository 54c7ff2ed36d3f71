// One operation of a pipeline from submit() to its end and release(). Everything but the pointer to
// the pipeline belongs to the pipeline's lock.
#pragma once

#include <vector>

#include "nccl/pipeline.h"

namespace db::nccl {

struct Pipeline::Request {
  Pipeline* owner = nullptr;
  Op op;
  std::vector<uint64_t> counts;  // what op's arrays point to
  Leftovers left;
  cudaEvent_t ready = nullptr;  // the data is there
  cudaEvent_t done = nullptr;   // the operation is over
  int64_t submitted_ns = 0;
  Stage stage = Stage::kQueued;
  bool good = false;  // of one that is over
  bool released = false;
  Request* next = nullptr;

  static Request& of(db_request* request) { return *reinterpret_cast<Request*>(request); }
  db_request* handle() { return reinterpret_cast<db_request*>(this); }
};

}  // namespace db::nccl
