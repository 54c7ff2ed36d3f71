// Packs rows of weights, and says what that lost. Plain functions, any thread; different rows may
// be packed by different threads. Sees no LibTorch.
#pragma once

#include <cstdint>

#include "quantize/packed_layout.h"

namespace coupler {

struct PackError {
  double squares = 0;         // of the differences, summed
  double weight_squares = 0;  // of the weights
  double most = 0;            // the largest difference
  bool finite = true;         // false where a weight is not: nothing else counts then

  void add(const PackError& other);
  // ||w - packed|| / ||w||, Frobenius norms; 0 for weights that are all 0.
  double relative() const;
};

// Rows begin to end - 1 into `packed`, which has layout.bytes(). weights: the first of these rows,
// [end - begin, columns]. Scales and zeros are rounded to what is stored before weights are divided
// by them, so that rounding them costs no more than a weight at the end of its range.
PackError pack_rows(const PackedLayout& layout, int64_t begin, int64_t end, const float* weights,
                    uint8_t* packed);

}  // namespace coupler
