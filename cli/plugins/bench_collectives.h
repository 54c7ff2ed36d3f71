// Measures latency and bandwidth of a communicator's collectives by size. Collective: every rank
// makes the same calls. Single-threaded.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace coupler::cli {

struct BenchPlan {
  std::vector<db_kind> kinds;
  db_dtype dtype = DB_F32;
  std::vector<uint64_t> bytes;  // of the larger buffer of a rank
  bool asynchronous = false;    // submit and wait, instead of blocking calls
  std::chrono::nanoseconds time = std::chrono::milliseconds(300);  // for each size
};

// Bandwidths in GB/s (10^9 bytes): algbw is bytes over the median time; busbw is the least that
// each rank's link carried, which is comparable across operations and world sizes.
struct BenchRow {
  std::string op, dtype;
  uint64_t bytes = 0;
  int world = 1;
  std::string backend;
  double median_us = 0, p99_us = 0, algbw = 0, busbw = 0;
};

// Times are rank 0's. Operations that the backend does not support for the dtype are left out.
std::vector<BenchRow> bench_collectives(Communicator& communicator, const std::string& backend,
                                        const BenchPlan& plan);

}  // namespace coupler::cli
