// DataLoader: iterates over batches of a dataset, each rank over its own share.
//
//   auto loader = coupler::data_loader(dataset, {.batch_size = 32, .shuffle = true});
//   for (auto& batch : loader) train(batch.data, batch.target);
//
// A dataset is one of
//   map-style  a torch::data dataset whose get_batch takes indices and that has a size();
//   stream     a torch::data dataset whose get_batch(count) returns an optional batch of up to
//              `count` samples (torch::data::datasets::StatefulDataset), none or an empty one at
//              the end; or anything with std::optional<Sample> next(). Either has reset(), called
//              at the start of every epoch, and may have set_epoch(int64_t), called before it.
//
// A stream may also have
//   size_t skip(size_t count)   leaves out the next `count` samples without reading them, and
//              returns how many there were: fewer only at the end. Each rank then reads only its
//              own samples, in the same order as without it, and resumes without reading again.
//   void shard(size_t part, size_t parts)   called before reset(): from then on the stream gives
//              only that part of its samples, one of `parts` that together have each sample once.
//              Each rank gets a part of its own, in batches of the part's order. If parts end at
//              different times, ranks without samples repeat their last batch, which does not
//              count (even_batches), or all stop with the first (drop_last).
//   void save(StateDict&) const, void load(const StateDict&)   its position, which load() restores
//              after reset() (and shard()). save() is called before every step is read; called
//              right after load() it must give the same values. Checkpoints include it.
//
// Accelerator::prepare binds a loader to the rank and device; before that it acts as if there were
// a single process. Every loop is one epoch, each in a new order if shuffled. An exception of the
// dataset leaves the loop as an Error that names the batch, with the original nested in it. A
// loader is a handle: copies refer to the same loader. Not thread-safe: one thread iterates, one
// loop at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/detail/dataset_source.h>
#include <coupler/detail/loader.h>
#include <coupler/detail/stream_source.h>
#include <coupler/sampler.h>
#include <coupler/state_dict.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace coupler {

// How a DataLoader distributes a dataset. Fields have the meaning of their namesakes in Accelerate
// or torch's DataLoader and, except for shuffle and seed, the same defaults; dispatch_batches is
// also off for streams.
struct DataLoaderOptions {
  int64_t batch_size = 1;  // per process; with split_batches, of all processes together
  bool shuffle = false;    // order depends only on (seed, epoch); not for streams
  // The program's own choice of samples or of batches; not for streams. As in torch, a sampler
  // excludes shuffle, and a batch sampler excludes batch_size, shuffle and a sampler, too.
  std::shared_ptr<Sampler> sampler = nullptr;
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;
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

// The position of a DataLoader, to save with a checkpoint; the same on every rank, except for
// `stream` if there are parts. Counts samples in the epoch's order over all ranks, not batches, so
// that a run can resume with another batch size or number of processes and still sees every sample
// once. Only a stream in parts must be resumed with as many processes within an epoch.
struct LoaderCursor {
  // The current epoch, from 0.
  int64_t epoch = 0;
  int64_t samples = 0;           // of that epoch already yielded, over all ranks
  uint64_t seed = 0;             // of shuffle
  int64_t dataset_samples = -1;  // the dataset's size(); -1 for a stream
  // If a batch sampler's batches differ in size: how many were yielded, over all ranks; samples is
  // 0 then.
  int64_t batches = 0;
  int64_t parts = 0;  // within an epoch of a stream that was divided: how many; 0: not divided
  // What the sampler saved before it chose the epoch, and the stream before it read what follows;
  // empty for those that save nothing.
  StateDict sampler = {};
  StateDict stream = {};
};

// Dataset and CollateFn are the types passed to data_loader().
template <class Dataset, class CollateFn>
class DataLoader {
  static constexpr bool kMapStyle = detail::is_map_style<Dataset>::value;
  static_assert(kMapStyle || detail::is_block_stream<Dataset>::value ||
                    detail::is_sample_stream<Dataset>::value,
                "coupler::data_loader needs a map-style dataset, whose get_batch takes indices, or "
                "a stream: reset() and either get_batch(size_t) or next(), returning an optional");
  using Source = std::conditional_t<kMapStyle, detail::MapSource<Dataset, CollateFn>,
                                    detail::StreamSource<Dataset, CollateFn>>;

 public:
  // What the collate function returns. Without one, a vector of tensor examples is stacked into one
  // example; batches that the dataset builds itself (TensorDataset, or map(Stack<>())) and other
  // examples are passed on as get_batch returns them.
  using Batch = typename Source::Batch;

  class Iterator;

  // Throws Error(kInvalidArgument) for an empty dataset, an invalid option, and options that would
  // yield no batch. For a stream, whose size is unknown, the loop throws instead.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, CollateFn collate = CollateFn())
      : shared_(std::make_shared<Shared>(std::move(dataset), options, std::move(collate))) {}

  // Starts the next epoch; after a break, the rest of it is skipped. Collective if the loader has a
  // sampler or batch sampler, dispatches, is joined, or reads a stream in parts. If the first batch
  // cannot be had, the next loop is the same.
  Iterator begin() { return Iterator(shared_); }
  Iterator end() { return Iterator(); }

  // The exact number of batches that the current loop, or else the next one, yields on this rank.
  // Not available for streams.
  int64_t size() const {
    static_assert(kMapStyle, "a stream's number of batches is known only at its end");
    return shared_->core.size();
  }

  // The current or last epoch, counted from 0, and the epoch of the next loop (after a checkpoint
  // was loaded: the epoch it interrupted).
  int64_t epoch() const { return shared_->core.epoch(); }
  int64_t next_epoch() const { return shared_->core.state().epoch; }
  void set_epoch(int64_t epoch) { shared_->core.set_epoch(epoch); }

  // The sampler; null if it has none. set_sampler gives it one, in place of the old one and of
  // shuffle, and null takes it away; the next loop starts an epoch with it. Throws
  // Error(kInvalidArgument) for a sampler with fewer samples than processes, Error(kUsage) within a
  // loop and for a loader with a batch sampler, which has a sampler of its own if any.
  std::shared_ptr<Sampler> get_sampler() const { return shared_->core.sampler(); }
  void set_sampler(std::shared_ptr<Sampler> sampler) {
    shared_->core.set_sampler(std::move(sampler));
  }

  // The position of the next sample: within a loop, after the current batch; outside of one (also
  // after a break), the next epoch. Save it with a checkpoint.
  LoaderCursor state() const { return shared_->core.state(); }

  // Makes the next loop start at the cursor, with any batch size and number of processes (except
  // for parts of a stream), without reading what comes before. Only a stream that can neither skip
  // nor load its position is read up to there, and a warning is logged then. Throws
  // Error(kInvalidArgument) for a cursor of another dataset or another kind of sampler and for
  // negative values, and what the sampler's load() throws; Error(kUsage) within a loop.
  void load_state(const LoaderCursor& cursor) { shared_->core.load_state(cursor); }

  // Makes the next loop, and only that one, skip its first `count` batches, at the same cost.
  // Throws Error(kInvalidArgument) if it has fewer batches.
  void skip_first_batches(int64_t count) { shared_->core.skip_first_batches(count); }

  // The dataset. Must not be changed during a loop with workers.
  Dataset& dataset() { return shared_->source.dataset(); }

  // Called by Accelerator::prepare. Batches of tensors (nested.h) are moved to `device` from then
  // on; other types stay where the dataset created them. `peers` connects to the other ranks, for
  // dispatch_batches and join_uneven_inputs.
  void bind(int rank, int world_size, at::Device device,
            std::shared_ptr<detail::LoaderPeers> peers = nullptr) {
    shared_->core.bind(rank, world_size, device, std::move(peers));
  }

  // The loop's position, for the Accelerator; lives as long as any copy of the pointer.
  std::shared_ptr<detail::LoaderCore> core() const { return {shared_, &shared_->core}; }

 private:
  struct Shared {
    Shared(Dataset dataset, const DataLoaderOptions& options, CollateFn collate)
        : source(std::move(dataset), std::move(collate)), core(source, options) {}
    Source source;
    detail::LoaderCore core;  // destroyed first: ends its workers, which use the source
  };

  // One loop; ends with its last iterator.
  struct Pass {
    explicit Pass(std::shared_ptr<Shared> of)
        : shared(std::move(of)), number(shared->core.start_epoch()) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() { shared->core.end(number); }
    std::shared_ptr<Shared> shared;
    uint64_t number;
  };

  std::shared_ptr<Shared> shared_;
};

// An input iterator: the batch it points to is gone after ++.
template <class Dataset, class CollateFn>
class DataLoader<Dataset, CollateFn>::Iterator {
 public:
  // Required by std::iterator_traits.
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  Iterator() = default;

  // The batch, which may be modified and moved from; the end iterator has none.
  Batch& operator*() const { return pass_->shared->source.current(); }
  Batch* operator->() const { return &**this; }
  // Advances to the next batch. Throws what reading it throws.
  Iterator& operator++() {
    if (!pass_->shared->core.next(pass_->number)) pass_.reset();
    return *this;
  }
  void operator++(int) { ++*this; }
  // Equal if both are at the end or are copies of the same iterator.
  bool operator==(const Iterator& other) const { return pass_ == other.pass_; }
  bool operator!=(const Iterator& other) const { return pass_ != other.pass_; }

 private:
  friend class DataLoader;

  explicit Iterator(std::shared_ptr<Shared> shared)
      : pass_(std::make_shared<Pass>(std::move(shared))) {
    ++*this;
  }

  std::shared_ptr<Pass> pass_;  // null at the end
};

// Creates a loader over a dataset, which is copied or moved in, as is `collate` (torch's
// collate_fn): it gets what the dataset's get_batch returns, or a std::vector of what its get
// returns if it takes that instead, or for a stream of samples a std::vector of them, and returns
// the batch. With workers, each has a copy. Batches that are nested structures of tensors
// (nested.h) move to the device.
//
//   auto loader = coupler::data_loader(texts, {.batch_size = 8},
//                                      [](const std::vector<Text>& batch) { return pad(batch); });
template <class Dataset, class CollateFn = detail::DefaultCollate>
DataLoader<std::decay_t<Dataset>, std::decay_t<CollateFn>> data_loader(
    Dataset&& dataset, const DataLoaderOptions& options = {}, CollateFn&& collate = {}) {
  return {std::forward<Dataset>(dataset), options, std::forward<CollateFn>(collate)};
}

// Returns the loader, whose next loop skips its first `count` batches (see the member). Unlike in
// Accelerate, later loops are complete again, so no second loader is needed.
template <class Dataset, class CollateFn>
DataLoader<Dataset, CollateFn> skip_first_batches(DataLoader<Dataset, CollateFn> loader,
                                                  int64_t count) {
  loader.skip_first_batches(count);
  return loader;
}

// TensorDataset: samples are the rows of one tensor, their targets the rows of another. The fastest
// dataset for a DataLoader: a batch costs one gather per tensor, not one call per sample.
// Immutable; any thread may read.
class TensorDataset
    : public torch::data::datasets::BatchDataset<TensorDataset, torch::data::Example<>> {
 public:
  // Throws Error(kInvalidArgument) unless both have the same number of rows (size(0)).
  TensorDataset(at::Tensor data, at::Tensor target);

  // Returns one sample, as views.
  torch::data::Example<> get(size_t index) const;

  // Returns the rows in the order of the indices, as new tensors.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;

  // The number of rows.
  std::optional<size_t> size() const override;

 private:
  at::Tensor data_;
  at::Tensor target_;
};

}  // namespace coupler
