// StreamSource: the BatchSource of a stream. Internal to data_loader.h; not included by users.
//
// Every rank reads the whole stream, one step's samples at a time, and keeps its slice, as defined
// by Accelerate's IterableDatasetShard. What is in other ranks' slices it skips if the stream can.
// A stream that can be divided is told this rank's part, and all it gives is this rank's.
// Threading as in BatchSource.
#pragma once

#include <coupler/detail/dataset_source.h>
#include <coupler/state_dict.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

// Throws Error(kInvalidArgument): get_batch(asked) returned more samples.
[[noreturn]] void refuse_block(size_t asked, size_t given);
// Throws Error(kInvalidArgument): skip(asked) returned more samples.
[[noreturn]] void refuse_skip(size_t asked, size_t given);
// Throws Error(kInvalidArgument): load threw this, or did not restore the value of this name.
[[noreturn]] void refuse_state(const EpochStart& start, const std::string& problem);
[[noreturn]] void refuse_unrestored(const EpochStart& start, const std::string& name);

// The name of the first value or tensor in which the two differ; nullopt if there is none.
std::optional<std::string> first_difference(const StateDict& one, const StateDict& other);

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

template <class Dataset, class CollateFn>
class StreamSource
    : public BatchSlots<decltype(batch_of(std::declval<CollateFn&>(),
                                          std::declval<typename StreamReader<Dataset>::Block>()))> {
  static_assert(can_save<Dataset>::value == can_load<Dataset>::value,
                "a stream that saves its position has save(StateDict&) const and "
                "load(const StateDict&)");

 public:
  using Block = typename StreamReader<Dataset>::Block;
  using Ops = BlockOps<Block>;

  StreamSource(Dataset dataset, CollateFn collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}

  // The caller may change it outside of a loop.
  Dataset& dataset() { return dataset_; }

  std::optional<size_t> samples() const override { return std::nullopt; }
  bool is_stream() const override { return true; }
  StreamAbilities abilities() const override {
    return {can_shard<Dataset>::value, can_skip<Dataset>::value, can_save<Dataset>::value};
  }
  StateDict state_before(size_t slot) const override { return states_[slot]; }

  void begin(const EpochStart& start) override {
    this->clear_slots(start.slots);
    states_.assign(start.slots, {});
    start_ = start;
    begun_ = false;
  }

  StepRead fetch(size_t, size_t slot, const StepRequest& request) override {
    const bool first_step = !std::exchange(begun_, true);
    if (first_step) open();
    if constexpr (can_save<Dataset>::value) {
      StateDict state;
      std::as_const(dataset_).save(state);
      states_[slot] = std::move(state);
    }
    const size_t step_samples = start_.step_samples, before = read_;
    std::optional<Block> own = read_slice(request.first, request.slice);
    const size_t samples = read_ - before;
    size_t rows = samples;
    if (request.drop_last && samples < step_samples) rows = 0;
    if (request.fill && rows > 0) rows = step_samples;
    const auto of_slice = [&](size_t count) {
      return std::min(count - std::min(count, request.first), request.slice);
    };
    const StepRead result{of_slice(rows), of_slice(std::min(rows, samples)), read_};
    if (result.rows > 0) {
      own = filled(std::move(own), result, request.first + result.own - samples);
      this->fill_slot(slot, batch_of(collate_, std::move(*own)), request.pin);
    } else if (first_step && first_) {
      this->fill_slot(slot, batch_of(collate_, Ops::slice(*first_, 0, 1)), request.pin);
    }
    return result;
  }

 private:
  // Advances to the epoch's first sample after the skipped ones.
  void open() {
    first_.reset();
    read_ = 0;
    ended_ = false;
    if constexpr (can_shard<Dataset>::value) dataset_.shard(start_.part, start_.parts);
    if constexpr (wants_epoch<Dataset>::value) dataset_.set_epoch(start_.epoch);
    dataset_.reset();
    if (start_.state != nullptr) load(*start_.state);
    if (start_.skip > read_) {
      if constexpr (can_skip<Dataset>::value) {
        // The first step is read, since it fills an incomplete last one.
        if (!first_) read_block(std::min(start_.step_samples, start_.skip));
        pass_over(start_.skip - read_);
      }
    }
    while (read_ < start_.skip && read_block(std::min(start_.step_samples, start_.skip - read_))) {
    }
  }

  // Continues where the stream was when it saved this state.
  void load(const StateDict& state) {
    if constexpr (can_save<Dataset>::value) {
      read_block(start_.step_samples);  // fills an incomplete last step
      try {
        dataset_.load(state);
      } catch (const std::exception& problem) {
        refuse_state(start_, problem.what());
      }
      StateDict restored;
      std::as_const(dataset_).save(restored);
      if (const auto name = first_difference(state, restored)) refuse_unrestored(start_, *name);
      read_ = start_.state_at;
      ended_ = false;
    }
  }

  // Reads a step and returns its `slice` samples from `first` on, or those that exist.
  std::optional<Block> read_slice(size_t first, size_t slice) {
    const size_t step_samples = start_.step_samples;
    if constexpr (can_skip<Dataset>::value) {
      if (slice < step_samples && first_ && Ops::size(*first_) >= step_samples) {
        pass_over(first);
        std::optional<Block> own = read_block(slice);
        pass_over(step_samples - first - slice);
        return own;
      }
    }
    std::optional<Block> step = read_block(step_samples);
    const size_t given = step ? Ops::size(*step) : 0;
    if (first == 0 && given <= slice) return step;
    if (given <= first) return std::nullopt;
    return Ops::slice(*step, first, std::min(slice, given - first));
  }

  // Skips the next `count` samples, or fewer if the stream ends first.
  void pass_over(size_t count) {
    if constexpr (can_skip<Dataset>::value) {
      if (ended_ || count == 0) return;
      const auto skipped = static_cast<size_t>(dataset_.skip(count));
      if (skipped > count) refuse_skip(count, skipped);
      ended_ = skipped < count;
      read_ += skipped;
    }
  }

  // This rank's rows of a step: its own samples, then the first step's, again and again, from the
  // one with number `next` on.
  std::optional<Block> filled(std::optional<Block> own, const StepRead& wanted, size_t next) {
    size_t have = wanted.own;
    while (have < wanted.rows) {
      const size_t first = next % Ops::size(*first_);
      const size_t count = std::min(wanted.rows - have, Ops::size(*first_) - first);
      Block part = Ops::slice(*first_, first, count);
      own = own ? Ops::join(std::move(*own), part) : deep_copy(part);
      have += count;
      next += count;
    }
    return own;
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
  CollateFn collate_;
  EpochStart start_;
  std::vector<StateDict> states_;  // by slot; see state_before
  std::optional<Block> first_;
  size_t read_ = 0;
  bool ended_ = false;
  bool begun_ = false;  // whether a step was fetched
};

}  // namespace coupler::detail
