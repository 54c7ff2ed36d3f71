// What a dataset offers, how to cut and join its batches, and MapSource, the BatchSource of a
// map-style dataset. Internal to data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <coupler/detail/batch_slots.h>
#include <coupler/state_dict.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

template <class T>
struct optional_value {};
template <class T>
struct optional_value<std::optional<T>> {
  using type = T;
};
template <class T>
using optional_value_t = typename optional_value<std::decay_t<T>>::type;

// Map-style: get_batch takes indices.
template <class D, class = void>
struct is_map_style : std::false_type {};
template <class D>
struct is_map_style<D, std::void_t<typename D::BatchRequestType>>
    : std::is_same<typename D::BatchRequestType, c10::ArrayRef<size_t>> {};

// A torch stream: get_batch(count) returns `count` samples, fewer or none at the end.
template <class D, class = void>
struct is_block_stream : std::false_type {};
template <class D>
struct is_block_stream<
    D, std::void_t<optional_value_t<decltype(std::declval<D&>().get_batch(size_t{1}))>,
                   decltype(std::declval<D&>().reset())>> : std::true_type {};

// A Coupler stream: next() returns one sample, none at the end.
template <class D, class = void>
struct is_sample_stream : std::false_type {};
template <class D>
struct is_sample_stream<D, std::void_t<optional_value_t<decltype(std::declval<D&>().next())>,
                                       decltype(std::declval<D&>().reset())>> : std::true_type {};

// Whether the dataset has set_epoch(int64_t).
template <class D, class = void>
struct wants_epoch : std::false_type {};
template <class D>
struct wants_epoch<D, std::void_t<decltype(std::declval<D&>().set_epoch(int64_t{}))>>
    : std::true_type {};

// Whether a stream has shard(size_t part, size_t parts).
template <class D, class = void>
struct can_shard : std::false_type {};
template <class D>
struct can_shard<D, std::void_t<decltype(std::declval<D&>().shard(size_t{}, size_t{}))>>
    : std::true_type {};

// Whether a stream has skip(size_t).
template <class D, class = void>
struct can_skip : std::false_type {};
template <class D>
struct can_skip<D, std::void_t<decltype(std::declval<D&>().skip(size_t{}))>> : std::true_type {
  static_assert(std::is_convertible_v<decltype(std::declval<D&>().skip(size_t{})), size_t>,
                "a stream's skip(count) returns how many samples it skipped");
};

// Whether a stream has save(StateDict&) const, and load(const StateDict&): both or neither.
template <class D, class = void>
struct can_save : std::false_type {};
template <class D>
struct can_save<D, std::void_t<decltype(std::declval<const D&>().save(std::declval<StateDict&>()))>>
    : std::true_type {};
template <class D, class = void>
struct can_load : std::false_type {};
template <class D>
struct can_load<D, std::void_t<decltype(std::declval<D&>().load(std::declval<const StateDict&>()))>>
    : std::true_type {};

// Blocks: consecutive samples of a stream as returned by its dataset, and how to slice and join
// them. A block is a vector of samples, or tensors whose first dimension counts them. Pure
// functions, any thread.

// Returns the first dimension, which all tensors share. Throws Error(kInvalidArgument) if they
// differ, if one is undefined, and for a scalar: such a batch cannot be split.
size_t common_rows(const std::vector<at::Tensor>& tensors);
// Throws Error(kInvalidArgument) unless each defined tensor has this many rows.
void require_rows(const std::vector<at::Tensor>& tensors, size_t rows);
// Returns `count` rows starting at `first` of each tensor, as views; undefined tensors stay so.
std::vector<at::Tensor> narrow_rows(const std::vector<at::Tensor>& tensors, size_t first,
                                    size_t count);
std::vector<at::Tensor> join_rows(const std::vector<at::Tensor>& one,
                                  const std::vector<at::Tensor>& other);

template <class Block>
struct BlockOps {
  static_assert(is_tensors_v<Block>,
                "a stream's batches must be vectors of samples, tensors, or structures of tensors "
                "(nested.h): others cannot be split across processes");
  static size_t size(const Block& block) { return common_rows(view_of(block).leaves); }
  static Block slice(const Block& block, size_t first, size_t count) {
    return with_leaves(block, narrow_rows(view_of(block).leaves, first, count));
  }
  static Block join(const Block& one, const Block& other) {
    return with_leaves(one, join_rows(view_of(one).leaves, view_of(other).leaves));
  }
};

template <class Sample>
struct BlockOps<std::vector<Sample>> {
  static_assert(std::is_copy_constructible_v<Sample>,
                "a stream's samples must be copyable: the first ones fill an incomplete last step");
  using Block = std::vector<Sample>;
  static size_t size(const Block& block) { return block.size(); }
  static Block slice(const Block& block, size_t first, size_t count) {
    const auto begin = block.begin() + static_cast<std::ptrdiff_t>(first);
    return Block(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  static Block join(Block one, const Block& other) {
    one.insert(one.end(), other.begin(), other.end());
    return one;
  }
};

// MapSource: reads batches of a map-style dataset. Every worker except the loop's own thread has a
// copy of the dataset and of the collate function. Threading as in BatchSource.

// Throws Error(kInvalidArgument): workers need copies, but this type is not copyable.
[[noreturn]] void refuse_to_copy(const std::string& type, size_t workers);

// What a collate function gets: what get_batch returns or, if it does not take that, a vector of
// what get(index) returns.
template <class Dataset, class CollateFn>
decltype(auto) samples_of(Dataset& dataset, c10::ArrayRef<size_t> indices) {
  if constexpr (std::is_invocable_v<CollateFn&, typename Dataset::BatchType>) {
    return dataset.get_batch(indices);
  } else {
    using Sample = std::decay_t<decltype(dataset.get(size_t{}))>;
    static_assert(std::is_invocable_v<CollateFn&, std::vector<Sample>>,
                  "a collate function takes what the dataset's get_batch returns, or a vector of "
                  "what its get returns");
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (const size_t index : indices) samples.push_back(dataset.get(index));
    return samples;
  }
}

template <class Dataset, class CollateFn>
using MapBatch = decltype(batch_of(
    std::declval<CollateFn&>(),
    samples_of<Dataset, CollateFn>(std::declval<Dataset&>(), c10::ArrayRef<size_t>())));

template <class Dataset, class CollateFn>
class MapSource : public BatchSlots<MapBatch<Dataset, CollateFn>> {
 public:
  MapSource(Dataset dataset, CollateFn collate) : reader_{std::move(dataset), std::move(collate)} {}

  // The caller may change it outside of a loop; the next loop's workers copy it again.
  Dataset& dataset() {
    changed_ = true;
    return reader_.dataset;
  }

  std::optional<size_t> samples() const override { return reader_.dataset.size(); }
  bool is_stream() const override { return false; }
  StateDict state_before(size_t) const override { return {}; }

  void begin(const EpochStart& start) override {
    this->clear_slots(start.slots);
    if (changed_) copies_.clear();
    changed_ = false;
    if (copies_.size() >= start.workers || !start.reads) return;
    if constexpr (std::is_copy_constructible_v<Dataset> &&
                  std::is_copy_constructible_v<CollateFn>) {
      while (copies_.size() < start.workers) copies_.push_back(std::make_unique<Reader>(reader_));
    } else {
      using Single = std::conditional_t<std::is_copy_constructible_v<Dataset>, CollateFn, Dataset>;
      refuse_to_copy(c10::demangle(typeid(Single).name()), start.workers);
    }
  }

  StepRead fetch(size_t worker, size_t slot, const StepRequest& request) override {
    Reader& reader = worker == 0 ? reader_ : *copies_[worker - 1];
    this->fill_slot(
        slot,
        batch_of(reader.collate, samples_of<Dataset, CollateFn>(reader.dataset, request.indices)),
        request.pin);
    return {request.indices.size(), request.indices.size(), 0};
  }

 private:
  struct Reader {
    Dataset dataset;
    CollateFn collate;
  };

  Reader reader_;
  std::vector<std::unique_ptr<Reader>> copies_;
  bool changed_ = false;
};

}  // namespace coupler::detail
