// MapSource and StreamSource: the BatchSource of a map-style dataset and of a stream. Internal to
// data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <coupler/detail/batch_slots.h>

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
                "a stream's batches must be vectors of samples, tensors, or examples of tensors: "
                "others cannot be split across processes");
  static size_t size(const Block& block) { return common_rows(view_of(block).leaves); }
  static Block slice(const Block& block, size_t first, size_t count) {
    return with_leaves(Block(), narrow_rows(view_of(block).leaves, first, count));
  }
  static Block join(const Block& one, const Block& other) {
    return with_leaves(Block(), join_rows(view_of(one).leaves, view_of(other).leaves));
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
// copy of the dataset. Threading as in BatchSource.

// Throws Error(kInvalidArgument): workers need copies, but the dataset is not copyable.
[[noreturn]] void refuse_to_copy(const std::string& type, size_t workers);

template <class Dataset>
class MapSource : public BatchSlots<BatchOf<typename Dataset::BatchType>> {
 public:
  explicit MapSource(Dataset dataset) : dataset_(std::move(dataset)) {}

  // The caller may change it outside of a loop; the next loop's workers copy it again.
  Dataset& dataset() {
    changed_ = true;
    return dataset_;
  }

  std::optional<size_t> samples() const override { return dataset_.size(); }
  bool is_stream() const override { return false; }

  void begin(const EpochStart& start) override {
    this->clear_slots(start.slots);
    if (changed_) copies_.clear();
    changed_ = false;
    if (copies_.size() >= start.workers || !start.reads) return;
    if constexpr (std::is_copy_constructible_v<Dataset>) {
      while (copies_.size() < start.workers) copies_.push_back(std::make_unique<Dataset>(dataset_));
    } else {
      refuse_to_copy(c10::demangle(typeid(Dataset).name()), start.workers);
    }
  }

  StepRead fetch(size_t worker, size_t slot, const StepRequest& request) override {
    Dataset& dataset = worker == 0 ? dataset_ : *copies_[worker - 1];
    this->fill_slot(slot, collate(dataset.get_batch(request.indices)), request.pin);
    return {request.indices.size(), request.indices.size(), 0};
  }

 private:
  Dataset dataset_;
  std::vector<std::unique_ptr<Dataset>> copies_;
  bool changed_ = false;
};

// StreamSource: reads batches of a streaming dataset. Every rank reads the whole stream, one step's
// samples at a time, and keeps its slice, as defined by Accelerate's IterableDatasetShard.
// Threading as in BatchSource.

// Throws Error(kInvalidArgument): get_batch(asked) returned more samples.
[[noreturn]] void refuse_block(size_t asked, size_t given);

// The dataset's block type, and how to read up to `count` samples, at least one: an empty optional
// or block is the end of the stream.
template <class Dataset, class = void>
struct StreamReader {
  using Block = optional_value_t<decltype(std::declval<Dataset&>().get_batch(size_t{1}))>;
  static std::optional<Block> read(Dataset& dataset, size_t count) {
    return dataset.get_batch(count);
  }
};

template <class Dataset>
struct StreamReader<Dataset, std::enable_if_t<is_sample_stream<Dataset>::value>> {
  using Block = std::vector<optional_value_t<decltype(std::declval<Dataset&>().next())>>;
  static std::optional<Block> read(Dataset& dataset, size_t count) {
    Block block;
    block.reserve(count);
    while (block.size() < count) {
      auto sample = dataset.next();
      if (!sample) break;
      block.push_back(std::move(*sample));
    }
    return block;
  }
};

template <class Dataset>
class StreamSource : public BatchSlots<BatchOf<typename StreamReader<Dataset>::Block>> {
 public:
  using Block = typename StreamReader<Dataset>::Block;
  using Ops = BlockOps<Block>;

  explicit StreamSource(Dataset dataset) : dataset_(std::move(dataset)) {}

  // The caller may change it outside of a loop.
  Dataset& dataset() { return dataset_; }

  std::optional<size_t> samples() const override { return std::nullopt; }
  bool is_stream() const override { return true; }

  void begin(const EpochStart& start) override {
    this->clear_slots(start.slots);
    start_ = start;
    begun_ = false;
  }

  StepRead fetch(size_t, size_t slot, const StepRequest& request) override {
    const bool first_step = !std::exchange(begun_, true);
    if (first_step) open();
    const size_t step_samples = start_.step_samples;
    std::optional<Block> block = read_block(step_samples);
    const size_t samples = block ? Ops::size(*block) : 0;
    size_t rows = samples;
    if (request.drop_last && samples < step_samples) rows = 0;
    while (request.fill && rows > 0 && rows < step_samples) {
      const size_t lacking = std::min(step_samples - rows, Ops::size(*first_));
      block = Ops::join(std::move(*block), Ops::slice(*first_, 0, lacking));
      rows += lacking;
    }
    const auto of_slice = [&](size_t count) {
      return std::min(count - std::min(count, request.first), request.slice);
    };
    const StepRead result{of_slice(rows), of_slice(std::min(rows, samples)), read_};
    if (result.rows > 0 && result.rows < rows) {
      this->fill_slot(slot, collate(Ops::slice(*block, request.first, result.rows)), request.pin);
    } else if (result.rows > 0) {
      this->fill_slot(slot, collate(std::move(*block)), request.pin);
    } else if (first_step && first_) {
      this->fill_slot(slot, collate(Ops::slice(*first_, 0, 1)), request.pin);
    }
    return result;
  }

 private:
  // Advances to the epoch's first sample after the skipped ones.
  void open() {
    first_.reset();
    read_ = 0;
    ended_ = false;
    if constexpr (wants_epoch<Dataset>::value) dataset_.set_epoch(start_.epoch);
    dataset_.reset();
    while (read_ < start_.skip && read_block(std::min(start_.step_samples, start_.skip - read_))) {
    }
  }

  // Reads the next `count` samples, or fewer if the stream ends first; nullopt at its end.
  std::optional<Block> read_block(size_t count) {
    std::optional<Block> block;
    size_t have = 0;
    while (!ended_ && have < count) {
      std::optional<Block> part = StreamReader<Dataset>::read(dataset_, count - have);
      const size_t given = part ? Ops::size(*part) : 0;
      if (given > count - have) refuse_block(count - have, given);
      ended_ = given == 0;
      if (ended_) break;
      block = block ? Ops::join(std::move(*block), *part) : std::move(*part);
      have += given;
    }
    if (block) remember_first(*block);
    read_ += have;
    return block;
  }

  // Keeps the first step's samples, which fill an incomplete last step. They may be read in several
  // blocks if samples are skipped.
  void remember_first(const Block& block) {
    const size_t have = first_ ? Ops::size(*first_) : 0;
    if (have != read_ || have >= start_.step_samples) return;
    const size_t wanted = std::min(start_.step_samples - have, Ops::size(block));
    const Block part = deep_copy(Ops::slice(block, 0, wanted));
    first_ = first_ ? Ops::join(std::move(*first_), part) : part;
  }

  Dataset dataset_;
  EpochStart start_;
  std::optional<Block> first_;
  size_t read_ = 0;
  bool ended_ = false;
  bool begun_ = false;  // whether a step was fetched
};

}  // namespace coupler::detail
