#include "quantize/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace coupler::quantization {
namespace {

// Rounds a finite value to the nearest bfloat16, returned as a float.
float to_bfloat16(float value) {
  auto word = std::bit_cast<uint32_t>(value);
  word += 0x7fffU + ((word >> 16) & 1U);
  return std::bit_cast<float>(word & 0xffff0000U);
}

void compare(float weight, float packed, PackError& error) {
  const double difference = std::fabs(static_cast<double>(weight) - packed);
  error.squares += difference * difference;
  error.most = std::max(error.most, difference);
}

bool measure(const float* weights, int64_t count, float& least, float& most, PackError& error) {
  least = most = weights[0];
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(weights[i])) return error.finite = false;
    least = std::min(least, weights[i]);
    most = std::max(most, weights[i]);
    error.weight_squares += static_cast<double>(weights[i]) * weights[i];
  }
  return true;
}

void pack_row8(const PackedLayout& layout, const float* weights, int8_t* bytes, float* scale,
               PackError& error) {
  float least = 0, most = 0;
  if (!measure(weights, layout.columns, least, most, error)) return;
  *scale = std::max(-least, most) / 127;
  // Rows of zeros, or of numbers too small for a normal scale.
  const float inverse = *scale < 1e-37F ? 0 : 1 / *scale;
  if (inverse == 0) *scale = 0;
  for (int64_t k = 0; k < layout.columns; ++k) {
    const float q = std::clamp(std::nearbyint(weights[k] * inverse), -127.0F, 127.0F);
    bytes[k] = static_cast<int8_t>(q);
    compare(weights[k], q * *scale, error);
  }
}

void pack_group4(const PackedLayout& layout, const float* weights, uint8_t* bytes, uint32_t* word,
                 PackError& error) {
  float least = 0, most = 0;
  if (!measure(weights, layout.group, least, most, error)) return;
  // Halves first: the difference of two finite numbers may overflow.
  float scale = to_bfloat16((most / 2 - least / 2) / 7.5F);
  if (scale < 1e-37F) scale = 0;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const float zero = to_bfloat16(scale == 0 ? least / 2 + most / 2 : least + 8 * scale);
  *word = std::bit_cast<uint32_t>(scale) | (std::bit_cast<uint32_t>(zero) >> 16);
  for (int64_t block = 0; block < layout.group; block += PackedLayout::kBlock) {
    constexpr int64_t kHalf = PackedLayout::kBlock / 2;
    uint32_t q[PackedLayout::kBlock];
    for (int64_t i = 0; i < PackedLayout::kBlock; ++i) {
      const float weight = weights[block + i];
      const float level = std::clamp(std::nearbyint((weight - zero) * inverse), -8.0F, 7.0F);
      q[i] = static_cast<uint32_t>(level + 8);
      compare(weight, level * scale + zero, error);
    }
    for (int64_t i = 0; i < kHalf; ++i)
      bytes[block / 2 + i] = static_cast<uint8_t>(q[i] | (q[kHalf + i] << 4));
  }
}

}  // namespace

void PackError::add(const PackError& other) {
  squares += other.squares;
  weight_squares += other.weight_squares;
  most = std::max(most, other.most);
  finite = finite && other.finite;
}

double PackError::relative() const {
  return weight_squares == 0 ? 0 : std::sqrt(squares / weight_squares);
}

PackError pack_rows(const PackedLayout& layout, int64_t begin, int64_t end, const float* weights,
                    uint8_t* packed) {
  PackError error;
  auto* const scales = reinterpret_cast<uint32_t*>(packed + layout.scales_begin());
  for (int64_t row = begin; row < end; ++row) {
    const float* const from = weights + (row - begin) * layout.columns;
    uint8_t* const to = packed + static_cast<size_t>(row) * layout.row_bytes();
    if (layout.bits == 8) {
      float scale = 0;
      pack_row8(layout, from, reinterpret_cast<int8_t*>(to), &scale, error);
      scales[row] = std::bit_cast<uint32_t>(scale);
      continue;
    }
    for (int64_t g = 0; g < layout.groups(); ++g) {
      uint32_t word = 0;
      pack_group4(layout, from + g * layout.group, to + g * layout.group / 2, &word, error);
      scales[row * layout.groups() + g] = word;
    }
  }
  return error;
}

}  // namespace coupler::quantization
