// LoaderView: what the Accelerator sees of a prepared data loader, of whatever kind: where its loop
// stands. Used by the thread that iterates. Behind data_loader.h; not included by users.
#pragma once

#include <coupler/loader_cursor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace coupler::detail {

// Of a batch: its samples, and how many of them, the first ones, are this rank's own.
struct BatchSamples {
  int64_t all = 0;
  int64_t own = 0;

  // Whether a value of so many rows has one for each sample. Where none is its own all will do.
  bool fits(int64_t rows) const { return own == 0 || rows == own || rows == all; }
};

class LoaderView {
 public:
  LoaderView() = default;
  LoaderView(const LoaderView&) = delete;
  LoaderView& operator=(const LoaderView&) = delete;
  virtual ~LoaderView() = default;

  // What a checkpoint holds of it: see DataLoader.
  virtual LoaderCursor state() const = 0;
  virtual void load_state(const LoaderCursor& cursor) = 0;

  // Called by the thread that iterates at the end of every pass through a loop's body.
  virtual void at_end_of_body(std::function<void()> call) = 0;

  // Whether a loop over it is under way.
  virtual bool in_loop() const = 0;
  // Which loop of the process the latest is, counted over all loaders; 0 before the first. Of
  // nested loops the inner one has the higher number.
  virtual uint64_t loop_number() const = 0;

  // Of the batch now held by this rank:
  // whether it is the epoch's last;
  virtual bool at_last_batch() const = 0;
  // how many of its samples, the first ones, are not repeated to fill it. Over the batches of all
  // ranks in an epoch these are every sample once;
  virtual int64_t own_samples() const = 0;
  // how many it has with them;
  virtual int64_t batch_samples() const = 0;
  // whether it only stands in for one that this rank no longer has (join_uneven_inputs).
  virtual bool stands_in() const = 0;

  // Whether loops begun from now on keep the ranks in step where they have different numbers of
  // batches, and what even_batches is meanwhile, where that is to be another than the loader's own.
  // Throws Error(kUsage) where it is turned on within a loop.
  virtual void join(bool on, std::optional<bool> even_batches) = 0;
};

}  // namespace coupler::detail
