// DataLoaderOptions: how a DataLoader distributes a dataset. Plain values.
#pragma once

#include <cstdint>

namespace coupler {

// Fields have the meaning of their namesakes in Accelerate or torch's DataLoader and, except for
// shuffle and seed, the same defaults; dispatch_batches is also off for streams.
struct DataLoaderOptions {
  int64_t batch_size = 1;      // per process; with split_batches, of all processes together
  bool shuffle = false;        // order depends only on (seed, epoch); not for streams
  bool drop_last = false;      // drop the last step if it is incomplete
  uint64_t seed = 0;           // of shuffle
  bool split_batches = false;  // step k sees the same samples for any number of processes
  bool even_batches = true;    // fill the last step from the epoch's first samples
  // Only rank 0 reads; the others receive their rows from it. For batches of tensors.
  bool dispatch_batches = false;
  // Number of threads that read ahead; with 0, the loop's thread reads each batch when it is
  // needed. The order of batches does not depend on it. Each worker has a copy of a map-style
  // dataset, as in torch; state shared by copies (a file, a shared_ptr) must be safe to read from
  // several threads. A stream is read by at most one worker.
  int64_t workers = 0;
  int64_t prefetch = 2;  // number of batches kept ready per worker
  // If batches go to a device other than the CPU, they are read into page-locked memory, so that
  // copies overlap with computation on the device.
  bool pin_memory = true;
  bool non_blocking = true;
};

}  // namespace coupler
