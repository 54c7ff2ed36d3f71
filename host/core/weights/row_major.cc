#include "weights/row_major.h"

#include <algorithm>
#include <cstring>

namespace coupler {
namespace {

struct Dimension {
  uint64_t size;
  uint64_t stride;  // in elements
};

// Drops dimensions of size 1 and joins those that are adjacent in memory: a contiguous tensor has
// at most one, of stride 1.
std::vector<Dimension> joined(const std::vector<int64_t>& shape,
                              const std::vector<int64_t>& strides) {
  std::vector<Dimension> result;
  for (size_t i = 0; i < shape.size(); ++i) {
    const Dimension next{static_cast<uint64_t>(shape[i]), static_cast<uint64_t>(strides[i])};
    if (next.size == 1) continue;
    if (!result.empty() && result.back().stride == next.stride * next.size)
      result.back() = {result.back().size * next.size, next.stride};
    else
      result.push_back(next);
  }
  return result;
}

// Collects bytes into chunks.
class Chunks {
 public:
  Chunks(const ByteSink& sink, uint64_t element) : sink_(sink), element_(element) {
    chunk_.resize(kWeightChunk / element * element);
  }

  // `count` elements, each `step` bytes after the previous one.
  void add(const uint8_t* from, uint64_t count, uint64_t step) {
    while (count > 0) {
      const uint64_t part = std::min(count, (chunk_.size() - used_) / element_);
      if (step == element_)
        std::memcpy(chunk_.data() + used_, from, part * element_);
      else
        copy(from, part, step);
      used_ += part * element_;
      from += part * step;
      count -= part;
      if (used_ == chunk_.size()) flush();
    }
  }
  void flush() {
    if (used_ > 0) sink_(chunk_.data(), used_);
    used_ = 0;
  }

 private:
  // With a size known to the compiler, each copy is a load and a store.
  template <size_t kBytes>
  void copy_each(const uint8_t* from, uint64_t count, uint64_t step) {
    char* to = chunk_.data() + used_;
    for (uint64_t i = 0; i < count; ++i) std::memcpy(to + i * kBytes, from + i * step, kBytes);
  }
  void copy(const uint8_t* from, uint64_t count, uint64_t step) {
    switch (element_) {
      case 1:
        return copy_each<1>(from, count, step);
      case 2:
        return copy_each<2>(from, count, step);
      case 4:
        return copy_each<4>(from, count, step);
      case 8:
        return copy_each<8>(from, count, step);
      default:
        for (uint64_t i = 0; i < count; ++i)
          std::memcpy(chunk_.data() + used_ + i * element_, from + i * step, element_);
    }
  }

  const ByteSink& sink_;
  const uint64_t element_;
  std::vector<char> chunk_;
  uint64_t used_ = 0;
};

}  // namespace

bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  const std::vector<Dimension> dimensions = joined(shape, strides);
  return dimensions.empty() || (dimensions.size() == 1 && dimensions[0].stride == 1);
}

void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  std::vector<Dimension> dimensions = joined(shape, strides);
  if (dimensions.empty()) dimensions.push_back({1, 1});
  const Dimension row = dimensions.back();
  dimensions.pop_back();
  if (is_row_major(shape, strides)) {
    const uint64_t all = row.size * bytes;
    for (uint64_t at = 0; at < all; at += kWeightChunk)
      sink(reinterpret_cast<const char*>(first) + at, std::min<uint64_t>(kWeightChunk, all - at));
    return;
  }
  Chunks chunks(sink, bytes);
  std::vector<uint64_t> index(dimensions.size(), 0);
  uint64_t offset = 0;  // of the row, in elements
  for (;;) {
    chunks.add(first + offset * bytes, row.size, row.stride * bytes);
    size_t i = dimensions.size();
    for (; i > 0; --i) {
      const Dimension& dimension = dimensions[i - 1];
      offset += dimension.stride;
      if (++index[i - 1] < dimension.size) break;
      offset -= dimension.stride * dimension.size;
      index[i - 1] = 0;
    }
    if (i == 0) break;
  }
  chunks.flush();
}

}  // namespace coupler
