// LoaderCursor: the position of a DataLoader. Plain values to save with a checkpoint; the same on
// every rank.
#pragma once

#include <cstdint>

namespace coupler {

// Counts samples in the epoch's order over all ranks, not batches, so that a run can resume with
// another batch size or number of processes and still sees every sample once.
struct LoaderCursor {
  // The current epoch, from 0.
  int64_t epoch = 0;
  int64_t samples = 0;           // of that epoch already yielded, over all ranks
  uint64_t seed = 0;             // of shuffle
  int64_t dataset_samples = -1;  // the dataset's size(); -1 for a stream
};

}  // namespace coupler
