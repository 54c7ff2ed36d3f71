// DataLoaderOptions: how a DataLoader deals out a dataset. Plain values.
#pragma once

#include <cstdint>

namespace coupler {

// Each has the meaning of its namesake in Accelerate or torch's DataLoader and, but for shuffle and
// seed, its default; dispatch_batches is off for streams too.
struct DataLoaderOptions {
  int64_t batch_size = 1;      // of one process; of all together where split_batches
  bool shuffle = false;        // in an order that (seed, epoch) alone decide; not for streams
  bool drop_last = false;      // leave out the last step where samples do not suffice
  uint64_t seed = 0;           // of shuffle
  bool split_batches = false;  // step k sees the same samples whatever the number of processes
  bool even_batches = true;    // fill the last step from the epoch's first samples
  // Rank 0 alone reads; the others receive their rows from it. For batches of tensors.
  bool dispatch_batches = false;
  // Threads that read ahead; 0: the loop's own thread reads when it needs a batch. Batches come in
  // the same order whatever the number. Each worker has a copy of a map-style dataset, as in torch;
  // what copies share (a file, a shared_ptr) must be safe to read from several threads. A stream is
  // read by at most one worker.
  int64_t workers = 0;
  int64_t prefetch = 2;  // batches that lie ready, per worker
  // Where batches go to another device than the CPU: they are read into page-locked memory, from
  // which copies do not wait for what the device computes.
  bool pin_memory = true;
  bool non_blocking = true;
};

}  // namespace coupler
