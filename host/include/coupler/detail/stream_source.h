// StreamSource: reads batches of a streaming dataset. Every rank reads the whole stream, one step's
// samples at a time, and keeps its slice, as defined by Accelerate's IterableDatasetShard.
// Threading as in batch_source.h. Internal to data_loader.h; not included by users.
#pragma once

#include <coupler/detail/batch_slots.h>
#include <coupler/detail/dataset_kind.h>
#include <coupler/detail/stream_block.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

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
