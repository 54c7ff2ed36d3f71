// Options of Accelerator::profile: what is recorded, when, and where it is written. A value.
//
// Counts are iterations of loops over prepared loaders; loops over anything else call
// end_of_body(). Each round consists of wait, warmup and active iterations.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

// What Accelerator::profile records, and when.
struct ProfileOptions {
  std::string dir = "traces";   // folder of traces and summaries; existing ones are replaced
  int64_t skip_first = 0;       // iterations before the first round
  int64_t wait = 0;             // iterations of a round that are not profiled
  int64_t warmup = 0;           // iterations profiled without keeping the results
  int64_t active = 0;           // iterations recorded; 0: all until the scope ends
  int64_t repeat = 1;           // number of rounds; 0: until the scope ends
  bool record_shapes = false;   // record the shapes of operations' inputs
  bool profile_memory = false;  // record allocations and frees
  bool with_stack = false;      // record the TorchScript call sites of operations
  bool with_flops = false;      // estimate floating-point operations of products and convolutions
};

}  // namespace coupler
