// Contents: what the ranks put into their buffers in all cells of one dtype and reduction, and the
// naive reference of what comes out. Computed once, as far as a cell needs it; each cell begins at
// a place of its own, so that what another left behind is not right. Single-threaded.
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
  Contents(db_reduce reduce, int world)
      : reduce_(reduce), inputs_(static_cast<size_t>(world)), row_(static_cast<size_t>(world)) {}

  // What the rank puts in in the cell of that number, from its element `first` on.
  void copy(uint64_t number, int rank, uint64_t first, std::span<T> to) {
    const std::vector<T>& from = input(rank, last_place(number, first, to.size()));
    in_runs(number, first, to.size(), [&](uint64_t at, uint64_t place, uint64_t count) {
      std::memcpy(to.data() + at, from.data() + place, count * sizeof(T));
    });
  }
  // The first of `got` that is not what the rank puts in from `first` on; got.size() if all are.
  uint64_t first_wrong(uint64_t number, int rank, uint64_t first, std::span<const T> got) {
    return first_wrong(number, first, got, input(rank, last_place(number, first, got.size())));
  }
  // The same of the reduction of what all put in.
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
  // After so many elements they repeat: longer than what any rank sends to another, and prime, so
  // that no two parts of one buffer are alike.
  static constexpr uint64_t kPeriod = 1'048'583;
  static_assert(kPeriod > kLarge);
  static constexpr uint64_t kStarts = 1021;

  static uint64_t place_of(uint64_t number, uint64_t index) {
    return (number % kStarts + index) % kPeriod;
  }
  // One past the last place that is needed of `count` elements.
  static uint64_t last_place(uint64_t number, uint64_t first, uint64_t count) {
    const uint64_t begin = place_of(number, first);
    return std::min(begin + count, kPeriod);
  }
  // Calls run(offset in the elements, place, count) for each part of them that lies in a row.
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
    const int world = static_cast<int>(inputs_.size());
    for (uint64_t i = values.size(); i < length; ++i) {
      values.push_back(element<T>(reduce_, world, kStoredSeed, rank, i));
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

// The contents of the dtype and reduction at hand: for cells that come in that order.
class Shelf {
 public:
  explicit Shelf(int world) : world_(world) {}

  template <typename T>
  Contents<T>& of(const Cell& cell) {
    if (!held_ || cell.dtype != dtype_ || cell.reduce != reduce_) {
      held_.reset();  // the memory of the last before that of the next
      held_ = std::make_shared<Contents<T>>(cell.reduce, world_);
      dtype_ = cell.dtype;
      reduce_ = cell.reduce;
    }
    return *static_cast<Contents<T>*>(held_.get());
  }

 private:
  int world_;
  db_dtype dtype_ = 0;
  db_reduce reduce_ = 0;
  std::shared_ptr<void> held_;  // a Contents<T>, T that of dtype_
};

}  // namespace coupler::matrix
