// Packs rows of weights and measures the error. Plain functions, any thread; threads may pack
// different rows. Does not use LibTorch.
#pragma once

#include <cstdint>

#include "quantize/packed_layout.h"

namespace coupler {

struct PackError {
  double squares = 0;         // of the differences, summed
  double weight_squares = 0;  // of the weights
  double most = 0;            // largest difference
  bool finite = true;         // false if a weight is not finite; the rest is invalid then

  void add(const PackError& other);
  // ||w - packed|| / ||w||, Frobenius norms; 0 for weights that are all 0.
  double relative() const;
};

// Packs rows begin to end - 1 into `packed`, which has layout.bytes(). weights: these rows, [end -
// begin, columns]. Scales and zeros are rounded to their stored precision before weights are
// divided by them, so that their rounding affects only weights at the end of the range.
PackError pack_rows(const PackedLayout& layout, int64_t begin, int64_t end, const float* weights,
                    uint8_t* packed);

}  // namespace coupler
