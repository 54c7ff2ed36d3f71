// Block and Part: which elements of a rank's data an operation is about. Plain values;
// [any-thread].
#pragma once

#include <cstdint>
#include <vector>

#include "hierarchical/layout.h"

namespace coupler::bench::simulated {

inline constexpr uint64_t kElementBytes = 4;

struct Block {
  uint64_t begin = 0;
  uint64_t count = 0;  // elements
};

using Part = std::vector<Block>;

inline uint64_t bytes_of(const Part& part) {
  uint64_t elements = 0;
  for (const Block& block : part) elements += block.count;
  return elements * kElementBytes;
}

inline void append(Part* part, const Part& more) {
  part->insert(part->end(), more.begin(), more.end());
}

// Block `whole` in `count` parts, as the plugins divide it.
inline std::vector<Part> even_parts(const Block& whole, int count) {
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(count));
  for (int j = 0; j < count; ++j) {
    const uint64_t begin = db::hierarchical::part_begin(whole.count, count, j);
    const uint64_t end = db::hierarchical::part_begin(whole.count, count, j + 1);
    parts.push_back({{whole.begin + begin, end - begin}});
  }
  return parts;
}

}  // namespace coupler::bench::simulated
