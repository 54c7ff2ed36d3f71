// LoaderCore::State: what the parts of LoaderCore share. Used by the thread that runs the loop.
// Workers also call request_of(); what that reads does not change while workers exist.
#pragma once

#include <coupler/data_loader.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/batch_dispatcher.h"
#include "data/batch_sampler.h"
#include "data/workers.h"

namespace coupler::detail {

struct LoaderCore::State {
  State(BatchSource& batch_source, const DataLoaderOptions& given);

  // A rank's plan of an epoch that starts at sample `from`. Throws if no rank would get a batch.
  data::BatchSampler sampler_from(size_t from, int of_rank, int ranks) const;
  // Makes the next loop begin there.
  void plan_next(size_t start);
  bool even_batches() const { return even.value_or(options.even_batches); }
  // Steps from `start` on, of a map-style dataset; the same on every rank.
  size_t steps_left() const;

  // Fills in what step `step` requests from the source.
  void request_of(size_t step, StepRequest& request) const;
  // Reads a step on a worker (0: this thread). Errors name the step.
  StepRead read(size_t worker, size_t step, size_t slot, StepRequest& request);

  // The phases of a loop.
  void begin();
  void advance();
  void finish() noexcept;
  // What this rank has in a step. A stream's step, or one that rank 0 sent, is then in its slot. A
  // map-style dataset is read as late as possible, since its size says whether it has the step.
  StepRead look(size_t step);
  StepRead local(size_t step);
  void require_samples(const StepRead& first) const;
  void agree_on_first();
  size_t slot_of(size_t step) const { return step % slots; }

  BatchSource& source;
  DataLoaderOptions options;
  std::optional<size_t> samples;  // empty for a stream

  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
  std::shared_ptr<LoaderPeers> peers;
  bool joining = false;        // the next loop is joined
  std::optional<bool> even;    // overrides options.even_batches
  data::BatchSampler sampler;  // of the current loop, or of the next one
  size_t start = 0;            // its first sample

  std::function<void()> on_step_end;    // null: unused
  MakeScope body_scope, reading_scope;  // null: unused

  int64_t epoch = 0;
  int64_t next_epoch = 0;
  uint64_t pass = 0;
  bool looping = false;
  uint64_t loop_number = 0;

  // The current loop:
  bool joined = false;  // the ranks are kept in step
  bool fill = false;    // the last step is filled
  size_t position = 0;  // batches yielded
  StepRead upcoming;    // what follows them, on this rank
  bool more = false;    // anything follows: on this rank or, if joined, on any
  size_t rows = 0;      // of the batch yielded last
  size_t own = 0;       // of those, without filling
  bool stands_in = false;
  std::shared_ptr<void> body;               // of the current pass through the loop's body
  std::vector<size_t> order;                // if shuffled
  std::optional<data::BatchSampler> whole;  // if rank 0 reads for all ranks
  std::unique_ptr<BatchDispatcher> dispatcher;
  StepRequest request;  // for this thread
  size_t slots = 1;
  std::vector<StepRead> ready;  // the contents of each slot
  std::vector<StepRequest> worker_requests;
  std::unique_ptr<data::Workers> workers;  // last member: destroyed first
};

// What `make` returns lives while a loader reads from its dataset on the thread that runs the loop,
// so that a dry run can give datasets real memory. Call it before any loader is used.
void set_reading_scope(std::shared_ptr<void> (*make)());
// Null unless one is set.
std::shared_ptr<void> reading_scope();

}  // namespace coupler::detail
