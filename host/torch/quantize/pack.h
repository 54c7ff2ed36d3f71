// Packs rows of weights and measures the error. Plain functions, any thread; threads may pack
// different rows. Does not use LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coupler::quantization {

// PackedLayout: the memory layout of a matrix of linear weights with 8 or 4 bits per weight. Plain
// data and arithmetic, any thread; does not use LibTorch.
//
// The matrix has `rows` outputs of `columns` inputs each; a weight that a module keeps as [in, out]
// is packed transposed. First come the weights, row by row, then the scales:
// - 8 bits: w = q * scale, with q in -127..127 and one float per row, max|w| / 127.
// - 4 bits: w = (q - 8) * scale + zero, with q in 0..15 and scale and zero for each group of
//   `group` inputs: (max - min) / 15 and min + 8 * scale, the form of ATen's
//   _weight_int4pack_mm. Both are bfloat16, in one 32-bit word with the scale in the upper half.
//   For each 32 consecutive weights, 16 bytes hold the first 16 in their lower halves and the
//   others in their upper halves, which vectors of 16 unpack without a shuffle.
// Unlike ATen's packing, which depends on the vector units of the machine, the bytes are the same
// everywhere, so that a file of them can be read on another machine. All values are little-endian.
struct PackedLayout {
  static constexpr int64_t kBlock = 32;     // 4-bit weights packed together
  static constexpr size_t kAlignment = 64;  // of the start of each part, within the whole

  int bits = 8;  // or 4
  int64_t rows = 0, columns = 0;
  int64_t group = 0;  // for 4 bits; divides columns

  int64_t groups() const { return bits == 8 ? 1 : columns / group; }  // per row
  size_t row_bytes() const { return static_cast<size_t>(columns) * static_cast<size_t>(bits) / 8; }
  size_t scales_begin() const { return aligned(static_cast<size_t>(rows) * row_bytes()); }
  size_t bytes() const {
    return scales_begin() + aligned(static_cast<size_t>(rows * groups()) * sizeof(uint32_t));
  }

 private:
  static size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
};

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

}  // namespace coupler::quantization
