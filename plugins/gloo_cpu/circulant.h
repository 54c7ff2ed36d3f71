// Circulant rounds: who exchanges which parts with whom in a reduce_scatter or all_gather of
// ceil(log2(W)) rounds, for any number of ranks W (J. L. Träff, "Optimal, Non-pipelined
// Reduce-scatter and Allreduce Algorithms", arXiv 2410.14234).
//
// In a reduce_scatter each rank begins with its own data for all W parts, counted from its own part
// on, around the end. In each round it gives the second half of what it has to the rank whose part
// is the first of that half, and adds to its own first half what it receives. Its own part is left.
// Altogether each rank sends W - 1 parts, and fewer are impossible. An all_gather takes the same
// rounds backwards: what was received is sent, and what was given is received.
// Pure functions; [any-thread].
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace db::gloo_cpu {

// Parts that follow each other in the buffer.
struct PartRun {
  int32_t first = 0;
  int32_t count = 0;
};

struct CirculantRound {
  int32_t to = 0;  // ranks
  int32_t from = 0;
  std::vector<PartRun> given;     // to `to`; one run, or two around the buffer's end
  std::vector<PartRun> received;  // from `from`, likewise
};

// `count` parts from `first` on, where the first part follows the last.
inline std::vector<PartRun> part_runs(int32_t first, int32_t count, int32_t size) {
  first %= size;
  const int32_t before_end = std::min(count, size - first);
  std::vector<PartRun> runs{{first, before_end}};
  if (before_end < count) runs.push_back({0, count - before_end});
  return runs;
}

// The rounds of a reduce_scatter, for this rank; none if size is 1.
inline std::vector<CirculantRound> circulant_rounds(int32_t rank, int32_t size) {
  std::vector<CirculantRound> rounds;
  for (int32_t left = size; left > 1;) {
    const int32_t kept = (left + 1) / 2, given = left - kept;
    rounds.push_back({(rank + kept) % size, (rank - kept + size) % size,
                      part_runs(rank + kept, given, size), part_runs(rank, given, size)});
    left = kept;
  }
  return rounds;
}

}  // namespace db::gloo_cpu
