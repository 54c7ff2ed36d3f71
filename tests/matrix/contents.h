// Contents: the ranks' inputs in all cells of one dtype and reduction, and the naive reference
// result. Computed once and only as far as a cell needs them. Each cell starts at a different
// offset, so leftovers of another cell are never correct. Single-threaded.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "cells.h"
#include "values.h"

namespace coupler::matrix {

template <typename T>
class Contents {
 public:
  Contents(db_reduce reduce, int world_size)
      : reduce_(reduce),
        inputs_(static_cast<size_t>(world_size)),
        row_(static_cast<size_t>(world_size)) {}

  // Copies the rank's input in cell `number`, starting at its element `first`.
  void copy(uint64_t number, int rank, uint64_t first, std::span<T> to) {
    const std::vector<T>& from = input(rank, last_place(number, first, to.size()));
    in_runs(number, first, to.size(), [&](uint64_t at, uint64_t place, uint64_t count) {
      std::memcpy(to.data() + at, from.data() + place, count * sizeof(T));
    });
  }
  // Index of the first element of `got` that differs from the rank's input starting at `first`;
  // got.size() if none does.
  uint64_t first_wrong(uint64_t number, int rank, uint64_t first, std::span<const T> got) {
    return first_wrong(number, first, got, input(rank, last_place(number, first, got.size())));
  }
  // The same, compared with the reduction of all ranks' inputs.
  uint64_t first_wrong_reduced(uint64_t number, uint64_t first, std::span<const T> got) {
    return first_wrong(number, first, got, reduced(last_place(number, first, got.size())));
  }
  T expected(uint64_t number, int rank, uint64_t index) {
    return input(rank, last_place(number, index, 1))[place_of(number, index)];
  }
  T expected_reduced(uint64_t number, uint64_t index) {
    return reduced(last_place(number, index, 1))[place_of(number, index)];
  }

 private:
  // The contents repeat after this many elements. It exceeds what one rank sends another, and is
  // prime, so no two parts of one buffer are equal.
  static constexpr uint64_t kPeriod = 1'048'583;
  static_assert(kPeriod > kLarge);
  static constexpr uint64_t kStarts = 1021;

  static uint64_t place_of(uint64_t number, uint64_t index) {
    return (number % kStarts + index) % kPeriod;
  }
  // One past the last place that `count` elements need.
  static uint64_t last_place(uint64_t number, uint64_t first, uint64_t count) {
    const uint64_t begin = place_of(number, first);
    return std::min(begin + count, kPeriod);
  }
  // Calls run(offset in the elements, place, count) for each contiguous part.
  template <typename Run>
  static void in_runs(uint64_t number, uint64_t first, uint64_t count, const Run& run) {
    for (uint64_t at = 0; at < count;) {
      const uint64_t place = place_of(number, first + at);
      const uint64_t here = std::min(count - at, kPeriod - place);
      run(at, place, here);
      at += here;
    }
  }

  const std::vector<T>& input(int rank, uint64_t length) {
    std::vector<T>& values = inputs_[static_cast<size_t>(rank)];
    const int world_size = static_cast<int>(inputs_.size());
    for (uint64_t i = values.size(); i < length; ++i) {
      values.push_back(element<T>(reduce_, world_size, kStoredSeed, rank, i));
    }
    return values;
  }
  const std::vector<T>& reduced(uint64_t length) {
    for (size_t rank = 0; rank < inputs_.size(); ++rank) input(static_cast<int>(rank), length);
    for (uint64_t i = reduced_.size(); i < length; ++i) {
      for (size_t rank = 0; rank < inputs_.size(); ++rank) row_[rank] = inputs_[rank][i];
      reduced_.push_back(reference(reduce_, row_));
    }
    return reduced_;
  }

  static uint64_t first_wrong(uint64_t number, uint64_t first, std::span<const T> got,
                              const std::vector<T>& right) {
    uint64_t wrong = got.size();
    in_runs(number, first, got.size(), [&](uint64_t at, uint64_t place, uint64_t count) {
      if (wrong < got.size()) return;
      if (std::memcmp(got.data() + at, right.data() + place, count * sizeof(T)) == 0) return;
      for (wrong = at; std::memcmp(&got[wrong], &right[place + wrong - at], sizeof(T)) == 0;)
        ++wrong;
    });
    return wrong;
  }

  db_reduce reduce_;
  std::vector<std::vector<T>> inputs_;  // by rank
  std::vector<T> reduced_;
  std::vector<T> row_;
};

// Holds the contents of the current dtype and reduction, for cells sorted by these.
class Shelf {
 public:
  explicit Shelf(int world_size) : world_size_(world_size) {}

  template <typename T>
  Contents<T>& of(const Cell& cell) {
    if (!held_ || cell.dtype != dtype_ || cell.reduce != reduce_) {
      held_.reset();  // frees the old memory before the new is allocated
      held_ = std::make_shared<Contents<T>>(cell.reduce, world_size_);
      dtype_ = cell.dtype;
      reduce_ = cell.reduce;
    }
    return *static_cast<Contents<T>*>(held_.get());
  }

 private:
  int world_size_;
  db_dtype dtype_ = 0;
  db_reduce reduce_ = 0;
  std::shared_ptr<void> held_;  // a Contents<T> for the T of dtype_
};

}  // namespace coupler::matrix
