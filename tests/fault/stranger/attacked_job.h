// One start of a small job under attack, and how it ended. For the test's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "network.h"
#include "ranks/ranks.h"

namespace backend_test {

// How the ranks of jobs ended.
struct Verdict {
  int64_t jobs = 0;
  int64_t well = 0;                // jobs: every rank got every result, and all were exact
  int64_t ended = 0;               // jobs: a rank got an error or died, and none a wrong result
  int64_t wrong = 0;               // jobs: a rank got a wrong result
  int64_t longest_ms = 0;          // duration of the longest job
  std::vector<std::string> texts;  // the first few failures
  void add(const Verdict& other);
  std::string describe() const;
};

// The ranks' operations after connecting: some all_reduces and an all_gather.
struct Work {
  std::vector<uint64_t> counts = {4096, 1, 65536};  // of the all_reduces
  bool splits = true;                               // and again on a split communicator
  int64_t timeout_ns = 0;                           // of each operation; 0: the job's
  int32_t armed_after = 0;                          // rank 0 sets `armed` after that many
  std::atomic<int>* armed = nullptr;                // shared with the ranks
};

// Rank r runs in networks[r * networks.size() / size]. In one network the ranks meet on loopback;
// in several, on the interface of that name, which each network must have.
Job placed_job(int32_t size, const std::vector<const Network*>& networks,
               const std::string& interface_name);

// Starts the job, which must not have must_connect, and waits for its end.
Verdict run_attacked(const Job& job, const Work& work);

}  // namespace backend_test
