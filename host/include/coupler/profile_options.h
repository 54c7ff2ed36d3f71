// Options of Accelerator::profile: what is recorded, when, and where it is written. A value.
//
// Counted in passes through the body of loops over prepared loaders; loops over anything else call
// end_of_body(). Rounds of wait, warmup and active follow each other.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

// What Accelerator::profile records, and when.
struct ProfileOptions {
  std::string dir = "traces";   // the folder of traces and summaries; those in it are replaced
  int64_t skip_first = 0;       // passes before the first round
  int64_t wait = 0;             // passes of a round in which nothing is done
  int64_t warmup = 0;           // in which the profiler runs, and what it sees is thrown away
  int64_t active = 0;           // that are recorded; 0: all until the scope ends
  int64_t repeat = 1;           // rounds; 0: until the scope ends
  bool record_shapes = false;   // of the operations' inputs
  bool profile_memory = false;  // what is allocated and freed
  bool with_stack = false;      // where TorchScript called operations from
  bool with_flops = false;      // floating-point operations of products and convolutions
};

}  // namespace coupler
