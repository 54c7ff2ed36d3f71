// BatchSource: what LoaderCore needs of the part of a data loader that knows the dataset's type. It
// reads batches into numbered slots and holds the one that the loop has. Threads: fetch() may run
// on several at once, each with a worker number and slot of its own (a stream's on one at a time);
// everything else belongs to the loop's thread. Behind data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coupler::detail {

// The begin of an epoch.
struct EpochStart {
  int64_t epoch = 0;
  size_t slots = 1;
  size_t workers = 0;
  bool reads = true;  // false: there will be put() in place of fetch()
  // Of a stream:
  size_t skip = 0;          // samples to leave out
  size_t step_samples = 1;  // samples of a step, from which an incomplete one is filled
};

// What a step is to read.
struct StepRequest {
  std::vector<size_t> indices;  // of a map-style dataset: the samples of the batch
  // Of a stream: of the next step_samples ones, those from `first` on, `slice` of them; an
  // incomplete step is filled, left out, or cut.
  size_t first = 0;
  size_t slice = 0;
  bool fill = false;
  bool drop_last = false;
  bool pin = false;  // into page-locked memory
};

// What there is in a step for the rank that asked.
struct StepRead {
  size_t rows = 0;  // 0: nothing
  size_t own = 0;   // of them, the first ones, no repetition
  size_t read = 0;  // what a stream has given in this epoch, skipped samples included
};

class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  // The dataset's size; nothing where it does not know it.
  virtual std::optional<size_t> samples() const = 0;
  virtual bool is_stream() const = 0;
  // Whether batches are tensors, so that they can be sent to other ranks; and their type's name.
  virtual bool sends_tensors() const = 0;
  virtual std::string batch_type() const = 0;

  // Begins an epoch; no fetch() is under way.
  virtual void begin(const EpochStart& start) = 0;

  // Reads the next step into the slot. Worker 0 is the loop's thread, others have a copy of a
  // map-style dataset. Where the first step read of a stream has nothing for this rank, the slot
  // gets the stream's first sample, to stand in.
  virtual StepRead fetch(size_t worker, size_t slot, const StepRequest& request) = 0;

  // The slot's batch becomes the loop's, on this device. clear(): the loop has none any more.
  virtual void take(size_t slot, at::Device device, bool non_blocking) = 0;
  virtual void clear() = 0;

  // Copies the loop's batch, or that in a slot, so that stand_in() can make it the loop's again
  // and again, whatever the loop does to it.
  virtual void keep() = 0;
  virtual void keep_slot(size_t slot, at::Device device) = 0;
  virtual void stand_in() = 0;

  // The tensors of a slot's batch, undefined ones included; and the reverse. sends_tensors() only.
  virtual std::vector<at::Tensor> tensors(size_t slot) const = 0;
  virtual void put(size_t slot, std::vector<at::Tensor> tensors) = 0;
};

}  // namespace coupler::detail
