// Gives a storage its values one chunk after another, with the bits that recorded operations would
// write into the whole, so that a large weight need not be in memory to be divided. Here is which
// operations can run so, and on which chunks; Replay runs them. The caller holds the recording's
// lock where operations are passed; run_on_chunk may draw from the default generator.
//
// The operations run unchanged, on a smaller tensor. uniform_ takes one random number for each
// element, in their order. normal_ takes numbers likewise and makes 16 values of 16 numbers; if 16
// does not divide the number of elements, it then draws the last 16 again. So chunks begin at
// multiples of 16, and the last one has 16 elements or more, unless the whole has fewer.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "empty_weights/recording.h"
#include "empty_weights/replay.h"

namespace coupler::empty_weights {

// How a tensor of `numel` elements is cut into chunks of about `bytes`.
class Chunks {
 public:
  Chunks(int64_t numel, size_t element_size, size_t bytes)
      : numel_(numel),
        most_(std::max(static_cast<int64_t>(bytes / element_size) / kUnit, int64_t{1}) * kUnit) {}

  // The most elements that a chunk has.
  int64_t largest() const { return std::min(numel_, most_ + kUnit - 1); }

  // Calls visit(first element, elements) for each chunk, in order.
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t begin = 0; begin < numel_;) {
      const int64_t rest = numel_ - begin, count = rest < most_ + kUnit ? rest : most_;
      visit(begin, count);
      begin += count;
    }
  }

 private:
  static constexpr int64_t kUnit = 16;
  int64_t numel_, most_;
};

// Whether the tensor is contiguous and takes all of its storage, which is not empty.
bool is_whole_storage(const TensorGeometry& geometry);

// The operation that gives all elements of a storage their values, and those that set some of them
// to a constant afterwards; as indices.
struct ChunkedFill {
  size_t operation = 0;
  std::vector<size_t> later;
};
using ChunkedFills = std::unordered_map<uint64_t, ChunkedFill>;

// Of these storages, which tensors of a type fill, those that can get their values in chunks:
// nothing but a ChunkedFill touches them from its operation on.
ChunkedFills chunked_fills(const std::deque<RecordedOperation>& operations,
                           const std::unordered_map<uint64_t, at::ScalarType>& storages);

// Changes the steps of a replay that run in chunks: the fills, each with what comes later, and
// draws whose values nothing needs.
void plan_chunks(const std::deque<RecordedOperation>& operations, const ChunkedFills& fills,
                 std::vector<ReplayStep>& steps);

// Runs an operation of a ChunkedFill on those elements of a chunk that it writes. begin: where the
// chunk is in the tensor.
void run_on_chunk(const RecordedOperation& operation, int64_t begin, const at::Tensor& chunk);

}  // namespace coupler::empty_weights
