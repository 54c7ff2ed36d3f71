// LoaderCore::State: what the parts of LoaderCore share. Used by the thread that runs the loop.
// Workers also call request_of(); what that reads does not change while workers exist.
#pragma once

#include <coupler/data_loader.h>
#include <coupler/sampler.h>
#include <coupler/state_dict.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_dispatcher.h"
#include "data/batch_sampler.h"
#include "data/sample_order.h"
#include "data/workers.h"

namespace coupler::detail {

struct LoaderCore::State {
  State(BatchSource& batch_source, const DataLoaderOptions& given);

  // What an epoch is planned from.
  struct EpochSize {
    // Over all ranks; empty for a stream. Batches if of_batches, each of which a step takes whole.
    std::optional<size_t> samples;
    int64_t batch_size = 1;
    bool of_batches = false;  // a batch sampler's, which differ in size
  };
  // Asks the sampler, if there is one. The last batch of a batch sampler counts as full.
  EpochSize measured() const;
  // Plans epochs of this size, and the next loop from `from` on. If it throws, nothing has changed.
  void adopt(const EpochSize& size, size_t from);
  SamplerBase* chooser() const;  // the sampler or batch sampler; null if there is none
  // How it is called in messages.
  const char* chooser_name() const { return options.batch_sampler ? "batch sampler" : "sampler"; }
  // Whether each rank reads its own part of a stream.
  bool divided() const;

  // A rank's plan of an epoch that starts at sample `from`. Throws if no rank would get a batch.
  data::BatchSampler sampler_from(size_t from, int of_rank, int ranks) const;
  // Makes the next loop begin there.
  void plan_next(size_t start);
  bool even_batches() const { return even.value_or(options.even_batches); }
  // Steps from `start` on, of a map-style dataset; the same on every rank.
  size_t steps_left() const;

  // Fills in what step `step` requests from the source.
  void request_of(size_t step, StepRequest& request) const;
  // Puts the epoch's samples in order. With a sampler, collective: every rank throws if one fails,
  // or if they differ.
  void make_order(bool reads);
  void choose_order(bool reads);
  void agree_on_order(bool failed) const;
  [[noreturn]] void refuse_difference() const;

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
  void warn_if_parts_are_equal();
  void require_same_parts() const;
  std::string place_of(size_t step, const StepRequest& wanted) const;
  size_t slot_of(size_t step) const { return step % slots; }

  BatchSource& source;
  DataLoaderOptions options;
  const std::optional<size_t> dataset_samples;  // empty for a stream
  std::optional<size_t> samples;                // of an epoch; see EpochSize
  int64_t batch_size = 1;
  bool of_batches = false;

  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
  bool bound = false;
  std::shared_ptr<LoaderPeers> peers;
  bool joining = false;        // the next loop is joined
  std::optional<bool> even;    // overrides options.even_batches
  data::BatchSampler sampler;  // of the current loop, or of the next one
  size_t start = 0;            // its first sample or batch
  // Of a stream that is to be resumed: its state after `at` samples over all ranks, in `parts`.
  struct StreamState {
    StateDict saved;
    size_t at = 0;
    int64_t parts = 0;
    bool resumed = false;  // a cursor within an epoch was loaded
  };
  StreamState stream_state;

  // Where a loop began, so that one whose first batch cannot be had can begin again.
  struct Place {
    int64_t epoch = 0, next_epoch = 0;
    EpochSize size;
    data::BatchSampler sampler;
    size_t start = 0;
    StreamState stream_state;
  };
  Place place() const;
  void begin_again();  // ends the loop

  std::function<void()> on_step_end;                                   // null: unused
  std::function<void(const std::vector<at::Tensor>&)> on_first_batch;  // null: unused, or called
  MakeScope body_scope, reading_scope;                                 // null: unused

  int64_t epoch = 0;
  int64_t next_epoch = 0;
  uint64_t pass = 0;
  bool looping = false;
  uint64_t loop_number = 0;

  // The current loop:
  std::optional<Place> begun_at;  // while no batch was yielded
  bool joined = false;            // the ranks are kept in step
  bool together = false;  // likewise, and the loop ends with the first rank that has no batch
  bool fill = false;      // the last step is filled
  size_t position = 0;    // batches yielded
  size_t looked_at = 0;   // the latest step that was looked at
  StepRead upcoming;      // what follows them, on this rank
  bool more = false;      // anything follows: on this rank or, if joined, on any
  size_t rows = 0;        // of the batch yielded last
  size_t own = 0;         // of those, without filling
  bool stands_in = false;
  std::shared_ptr<void> body;               // of the current pass through the loop's body
  data::SampleOrder order;                  // empty: that of the dataset
  StateDict sampler_state;                  // of the sampler before it chose the order
  std::optional<data::BatchSampler> whole;  // if rank 0 reads for all ranks
  std::unique_ptr<BatchDispatcher> dispatcher;
  StepRequest request;  // for this thread
  size_t slots = 1;
  std::vector<StepRead> ready;  // the contents of each slot
  std::vector<StepRequest> worker_requests;
  bool parts_compared = false;
  std::unique_ptr<data::Workers> workers;  // last member: destroyed first
};

// Rethrows the current exception, of a dataset or sampler, as an Error that names the place.
[[noreturn]] void rethrow_at(const std::string& place);

// A hash of the elements of a batch's tensors; 0 if there are none.
int64_t hash_of_values(const std::vector<at::Tensor>& tensors);

StateDict saved_by(const SamplerBase& sampler);
bool is_empty(const StateDict& state);

// What `make` returns lives while a loader reads from its dataset on the thread that runs the loop,
// so that a dry run can give datasets real memory. Call it before any loader is used.
void set_dataset_scope(std::shared_ptr<void> (*make)());
// Null unless one is set.
std::shared_ptr<void> dataset_scope();

}  // namespace coupler::detail
