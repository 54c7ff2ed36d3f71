// The parts of a data loader that are independent of the dataset's type, and BatchSource, their
// interface to the part that depends on it. Internal to data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <coupler/fwd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  size_t part = 0, parts = 1;        // which part to read, if it can be divided
  size_t skip = 0;                   // samples to skip, of that part
  size_t step_samples = 1;           // samples per step; the first step fills an incomplete one
  const StateDict* state = nullptr;  // what it saved after `state_at` samples; null: nothing
  size_t state_at = 0;               // at most `skip`
};

// What a stream offers besides reading.
struct StreamAbilities {
  bool shards = false;  // reads only one of several parts
  bool skips = false;   // skips samples without reading them
  bool saves = false;   // saves its position
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

// Reads batches into numbered slots and holds the loop's current batch. Threads:
// fetch() may run concurrently, each call with its own worker number and slot (for a stream, one
// call at a time); everything else belongs to the loop's thread.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  // The dataset's size; nullopt if unknown.
  virtual std::optional<size_t> samples() const = 0;
  virtual bool is_stream() const = 0;
  virtual StreamAbilities abilities() const { return {}; }
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

  // What a stream saved before it read the slot's step; empty if it saves nothing.
  virtual StateDict state_before(size_t slot) const = 0;

  // Gets and sets the tensors of a slot's batch, undefined ones included. sends_tensors() only.
  virtual std::vector<at::Tensor> tensors(size_t slot) const = 0;
  virtual void put(size_t slot, std::vector<at::Tensor> tensors) = 0;
};

// LoaderPeers: how a data loader communicates with the other ranks, passed to bind, so that loaders
// do not depend on communicators. Used by the iterating thread; every call is collective.
class LoaderPeers {
 public:
  LoaderPeers() = default;
  LoaderPeers(const LoaderPeers&) = delete;
  LoaderPeers& operator=(const LoaderPeers&) = delete;
  virtual ~LoaderPeers() = default;

  // Whether any rank passes true.
  virtual bool any(bool mine) = 0;
  // The values of all ranks, in rank order.
  virtual std::vector<int64_t> all(int64_t mine) = 0;
  // Overwrites `size` bytes at `data`, in host memory and as many on every rank, with rank 0's.
  virtual void broadcast(void* data, size_t size) = 0;
};

// The number of samples of a batch, and how many leading ones are not repetitions.
struct BatchSamples {
  int64_t all = 0;
  int64_t own = 0;

  // Whether a value with this many rows has one per sample. If own is 0, any number fits.
  bool fits(int64_t rows) const { return own == 0 || rows == own || rows == all; }
};

// LoaderCore: the part of a DataLoader that is independent of the dataset's type: which samples
// come next, which worker reads them, and the loop's position in the epoch. The Accelerator binds
// and observes loaders through it. Not thread-safe: one thread iterates.
class LoaderCore {
 public:
  // The source is borrowed and must outlive it. Throws Error(kInvalidArgument) for a map-style
  // dataset with unknown size or without samples, for an invalid option, and if no rank would get a
  // batch.
  LoaderCore(BatchSource& source, const DataLoaderOptions& options);
  ~LoaderCore();
  LoaderCore(const LoaderCore&) = delete;
  LoaderCore& operator=(const LoaderCore&) = delete;

  // Yields this rank's share on this device from now on; peers is null for a single process. Ends a
  // running iteration. Throws as the constructor does and for fewer samples than processes; nothing
  // has changed then.
  void bind(int rank, int world_size, at::Device device, std::shared_ptr<LoaderPeers> peers);

  // Number of batches of the current or next loop on this rank. Map-style only.
  int64_t size() const;

  // See DataLoader.
  std::shared_ptr<Sampler> sampler() const;
  void set_sampler(std::shared_ptr<Sampler> sampler);

  // The current or last epoch; 0 before the first.
  int64_t epoch() const;
  void set_epoch(int64_t epoch);  // of the next start_epoch; Error(kInvalidArgument) below 0

  // See DataLoader.
  LoaderCursor state() const;
  void load_state(const LoaderCursor& cursor);
  // Throws what load_state would throw for the cursor's numbers; changes nothing.
  void check_state(const LoaderCursor& cursor) const;
  void skip_first_batches(int64_t count);

  // Sets a function that the iterating thread calls at the end of every pass through a loop's body.
  void set_on_step_end(std::function<void()> call);

  // Sets a function that the iterating thread calls with the tensors of the first batch that this
  // loader yields, if it has any; if it throws, that batch is not yielded, and the function is
  // called again with that of the next loop.
  void set_on_first_batch(std::function<void(const std::vector<at::Tensor>& batch)> call);

  // Sets functions that the iterating thread calls when a pass through a loop's body begins, and
  // when batches are read; what they return lives until that ends. Null: unused.
  using MakeScope = std::function<std::shared_ptr<void>()>;
  void set_scopes(MakeScope body, MakeScope reading);

  // Whether a loop over it is running.
  bool in_loop() const;
  // The number of the latest loop, counted over all loaders of the process; 0 before the first. The
  // inner one of nested loops has the higher number.
  uint64_t loop_number() const;

  // About this rank's current batch:
  // whether it is the epoch's last;
  bool at_last_batch() const;
  // how many leading samples are not repeated to fill it; over the batches of all ranks in an
  // epoch, these are every sample exactly once;
  int64_t own_samples() const;
  // how many samples it has in total;
  int64_t batch_samples() const;
  // whether it is only a stand-in because this rank has no batch left (join_uneven_inputs).
  bool stands_in() const;

  // Sets whether loops started from now on keep ranks in step when they have different numbers of
  // batches, and optionally overrides the loader's even_batches meanwhile. Throws Error(kUsage) if
  // turned on within a loop.
  void join(bool on, std::optional<bool> even_batches);

  // Starts the next epoch and returns a number that identifies this pass.
  uint64_t start_epoch();

  // Makes the next batch the source's current one; returns false at the end of the epoch. Throws
  // Error(kUsage) if `pass` is not the latest: two loops over one loader would share its position.
  bool next(uint64_t pass);

  // Called when the loop ends or is left early; does nothing if `pass` is not the latest.
  void end(uint64_t pass) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coupler::detail
