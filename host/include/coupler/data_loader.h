// DataLoader: the batches of a map-style torch::data dataset, each rank its own share of them.
//
//   auto loader = coupler::data_loader(dataset, {.batch_size = 32, .shuffle = true});
//   for (auto& batch : loader) train(batch.data, batch.target);
//
// Accelerator::prepare binds a loader to the rank and device; before that it acts as the only
// process. Every loop over it is one epoch, the next one in another order where shuffled. A loader
// is a handle: copies are the same loader. Not thread-safe: one thread iterates, one loop at a
// time.
#pragma once

#include <c10/util/ArrayRef.h>
#include <coupler/detail/collate.h>
#include <coupler/detail/loader_core.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

namespace coupler {

template <class Dataset>
class DataLoader {
  static_assert(
      std::is_same_v<typename Dataset::BatchRequestType, c10::ArrayRef<size_t>>,
      "coupler::data_loader needs a map-style dataset: one whose get_batch takes indices");

 public:
  // A vector of examples of tensors is stacked into one example; what the dataset batches itself
  // (TensorDataset, or map(Stack<>())) and other examples come as get_batch returns them.
  using Batch = detail::BatchOf<typename Dataset::BatchType>;

  class Iterator;

  // Throws Error(kInvalidArgument) for an empty dataset, a wrong option, and options under which no
  // batch would be yielded.
  DataLoader(Dataset dataset, const DataLoaderOptions& options)
      : shared_(std::make_shared<Shared>(std::move(dataset), options)) {}

  // Starts the next epoch; a break leaves the rest of it out.
  Iterator begin() { return Iterator(shared_.get()); }
  Iterator end() { return Iterator(); }

  // The number of batches an epoch yields on this rank: always what a loop gets.
  int64_t size() const { return shared_->core.size(); }

  // The epoch iterated now or last, counted from 0, and the one to begin next.
  int64_t epoch() const { return shared_->core.epoch(); }
  void set_epoch(int64_t epoch) { shared_->core.set_epoch(epoch); }

  Dataset& dataset() { return shared_->dataset; }

  // Called by Accelerator::prepare. Batches of tensors come on `device` from then on; other types
  // stay where the dataset made them.
  void bind(int rank, int world, at::Device device) { shared_->core.bind(rank, world, device); }

  // Where the loop stands, for the Accelerator; lives as long as any copy of the pointer.
  std::shared_ptr<detail::LoaderCore> core() const { return {shared_, &shared_->core}; }

 private:
  struct Shared {
    Shared(Dataset d, const DataLoaderOptions& options)
        : dataset(std::move(d)), core(dataset.size(), options) {}
    Dataset dataset;
    detail::LoaderCore core;
    Batch batch{};
  };

  std::shared_ptr<Shared> shared_;
};

// An input iterator: the batch it points to is gone after ++.
template <class Dataset>
class DataLoader<Dataset>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  Iterator() = default;

  Batch& operator*() const { return shared_->batch; }
  Batch* operator->() const { return &shared_->batch; }
  Iterator& operator++() {
    fetch();
    return *this;
  }
  void operator++(int) { fetch(); }
  bool operator==(const Iterator& other) const { return shared_ == other.shared_; }
  bool operator!=(const Iterator& other) const { return shared_ != other.shared_; }

 private:
  friend class DataLoader;

  explicit Iterator(Shared* shared) : shared_(shared), pass_(shared->core.start_epoch()) {
    fetch();
  }

  void fetch() {
    const auto* indices = shared_->core.next(pass_);
    if (indices == nullptr) {
      shared_->batch = Batch{};
      shared_ = nullptr;
      return;
    }
    shared_->batch = detail::collate(shared_->dataset.get_batch(*indices), shared_->core.device());
  }

  Shared* shared_ = nullptr;  // null at the end
  uint64_t pass_ = 0;
};

template <class Dataset>
DataLoader<std::decay_t<Dataset>> data_loader(Dataset&& dataset,
                                              const DataLoaderOptions& options = {}) {
  return DataLoader<std::decay_t<Dataset>>(std::forward<Dataset>(dataset), options);
}

}  // namespace coupler
