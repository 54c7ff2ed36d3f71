// LoaderCursor: where in its epochs a DataLoader stands. Plain values to be saved with a
// checkpoint; the same on every rank.
#pragma once

#include <cstdint>

namespace coupler {

// Counted in samples of the epoch's order over all ranks, not in batches, so that a run may be
// resumed with other batch sizes or numbers of processes and still sees every sample once.
struct LoaderCursor {
  // The epoch that is under way, from 0.
  int64_t epoch = 0;
  int64_t samples = 0;           // of that epoch already yielded, over all ranks
  uint64_t seed = 0;             // of shuffle
  int64_t dataset_samples = -1;  // what the dataset's size() said; -1 of a stream
};

}  // namespace coupler
