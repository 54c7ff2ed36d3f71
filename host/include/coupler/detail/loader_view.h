// LoaderView: the Accelerator's view of a prepared data loader of any kind: the position of its
// loop. Used by the iterating thread. Internal to data_loader.h; not included by users.
#pragma once

#include <coupler/loader_cursor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace coupler::detail {

// The number of samples of a batch, and how many leading ones are not repetitions.
struct BatchSamples {
  int64_t all = 0;
  int64_t own = 0;

  // Whether a value with this many rows has one per sample. If own is 0, any number fits.
  bool fits(int64_t rows) const { return own == 0 || rows == own || rows == all; }
};

class LoaderView {
 public:
  LoaderView() = default;
  LoaderView(const LoaderView&) = delete;
  LoaderView& operator=(const LoaderView&) = delete;
  virtual ~LoaderView() = default;

  // The state saved in a checkpoint; see DataLoader.
  virtual LoaderCursor state() const = 0;
  virtual void load_state(const LoaderCursor& cursor) = 0;

  // Sets a function that the iterating thread calls at the end of every pass through a loop's body.
  virtual void at_end_of_body(std::function<void()> call) = 0;

  // Whether a loop over it is running.
  virtual bool in_loop() const = 0;
  // The number of the latest loop, counted over all loaders of the process; 0 before the first. The
  // inner one of nested loops has the higher number.
  virtual uint64_t loop_number() const = 0;

  // About this rank's current batch:
  // whether it is the epoch's last;
  virtual bool at_last_batch() const = 0;
  // how many leading samples are not repeated to fill it; over the batches of all ranks in an
  // epoch, these are every sample exactly once;
  virtual int64_t own_samples() const = 0;
  // how many samples it has in total;
  virtual int64_t batch_samples() const = 0;
  // whether it is only a stand-in because this rank has no batch left (join_uneven_inputs).
  virtual bool stands_in() const = 0;

  // Sets whether loops started from now on keep ranks in step when they have different numbers of
  // batches, and optionally overrides the loader's even_batches meanwhile. Throws Error(kUsage) if
  // turned on within a loop.
  virtual void join(bool on, std::optional<bool> even_batches) = 0;
};

}  // namespace coupler::detail
