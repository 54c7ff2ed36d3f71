// BatchSource: the interface between LoaderCore and the part of a data loader that depends on the
// dataset's type. It reads batches into numbered slots and holds the loop's current batch. Threads:
// fetch() may run concurrently, each call with its own worker number and slot (for a stream, one
// call at a time); everything else belongs to the loop's thread. Internal to data_loader.h; not
// included by users.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coupler::detail {

// The start of an epoch.
struct EpochStart {
  int64_t epoch = 0;
  size_t slots = 1;
  size_t workers = 0;
  bool reads = true;  // false: put() is called instead of fetch()
  // For a stream:
  size_t skip = 0;          // samples to skip
  size_t step_samples = 1;  // samples per step; the first step fills an incomplete one
};

// What to read for a step.
struct StepRequest {
  std::vector<size_t> indices;  // for a map-style dataset: the samples of the batch
  // For a stream: `slice` samples starting at `first` of the next step_samples ones; an incomplete
  // step is filled, dropped, or truncated.
  size_t first = 0;
  size_t slice = 0;
  bool fill = false;
  bool drop_last = false;
  bool pin = false;  // into page-locked memory
};

// What a step contains for the requesting rank.
struct StepRead {
  size_t rows = 0;  // 0: nothing
  size_t own = 0;   // how many leading rows are not repetitions
  size_t read = 0;  // samples read from a stream in this epoch, including skipped ones
};

class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  // The dataset's size; nullopt if unknown.
  virtual std::optional<size_t> samples() const = 0;
  virtual bool is_stream() const = 0;
  // Whether batches consist of tensors and can be sent to other ranks; the name of their type.
  virtual bool sends_tensors() const = 0;
  virtual std::string batch_type() const = 0;

  // Starts an epoch; no fetch() may be running.
  virtual void begin(const EpochStart& start) = 0;

  // Reads the next step into the slot. Worker 0 is the loop's thread; the others have a copy of a
  // map-style dataset. If the first step of a stream has nothing for this rank, the slot gets the
  // stream's first sample as a stand-in.
  virtual StepRead fetch(size_t worker, size_t slot, const StepRequest& request) = 0;

  // take() makes the slot's batch the loop's, on this device; clear() drops the loop's batch.
  virtual void take(size_t slot, at::Device device, bool non_blocking) = 0;
  virtual void clear() = 0;

  // Copies the loop's batch, or the slot's, so that stand_in() can make a copy the loop's batch
  // any number of times, even if the loop modifies it.
  virtual void keep() = 0;
  virtual void keep_slot(size_t slot, at::Device device) = 0;
  virtual void stand_in() = 0;

  // Gets and sets the tensors of a slot's batch, undefined ones included. sends_tensors() only.
  virtual std::vector<at::Tensor> tensors(size_t slot) const = 0;
  virtual void put(size_t slot, std::vector<at::Tensor> tensors) = 0;
};

}  // namespace coupler::detail
