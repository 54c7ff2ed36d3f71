// StatePiece: what one rank holds of one tensor of a checkpoint: a range of its elements, so that
// any number of ranks can load it. Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::checkpoint {

struct StatePiece {
  std::string name;            // canonical: the same under every backend and on every rank
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0, end = 0;  // of its elements, row-major
  at::Tensor values;           // as many elements, in any shape; loading writes to it
  int copies = 1, copy = 0;    // ranks that hold the same piece, and which of them this one is

  int64_t numel() const { return end - begin; }
  // Whether the piece is the whole tensor.
  bool whole() const;
};

// The name of its entry in a file: see piece_name.h.
std::string entry_name(const StatePiece& piece);

}  // namespace coupler::checkpoint
