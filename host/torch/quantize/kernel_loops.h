// The loops of multiply and unpack over a vector type. Each set of kernels instantiates them in a
// file compiled for its instruction set. Everything here has internal linkage, so that the linker
// cannot give another file code with instructions that the machine lacks.
//
// Vec: kWidth floats, a divisor of 16, with zero(), load(p), store(p), broadcast(f), fma(a, b, c) =
// a * b + c, sum(); of_bytes(p), kWidth int8 as floats; and nibbles(p, parts), a block of 32 4-bit
// weights as floats, minus 8.
#pragma once

#include <bit>
#include <cstdint>

#include "quantize/pack.h"

namespace coupler::quantization {
namespace {

constexpr int64_t kHalfBlock = PackedLayout::kBlock / 2;

inline const uint32_t* words_of(const PackedLayout& layout, const uint8_t* packed) {
  return reinterpret_cast<const uint32_t*>(packed + layout.scales_begin());
}
inline float scale_of(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000U); }
inline float zero_of(uint32_t word) { return std::bit_cast<float>(word << 16); }

// kCount rows of x at once, so that weights are unpacked once for all of them.
template <class Vec, int kCount>
void multiply8(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
               const float* x, float* y, int64_t y_stride) {
  const int64_t columns = layout.columns;
  constexpr int64_t kStep = 2 * Vec::kWidth;  // two sums hide the latency of an addition
  const int64_t whole = columns / kStep * kStep;
  const auto* const scales = reinterpret_cast<const float*>(packed + layout.scales_begin());
  for (int64_t row = begin; row < end; ++row) {
    const auto* const q = reinterpret_cast<const int8_t*>(packed) + row * columns;
    Vec sums[2 * kCount];
    for (Vec& sum : sums) sum = Vec::zero();
    for (int64_t k = 0; k < whole; k += kStep) {
      const Vec first = Vec::of_bytes(q + k), second = Vec::of_bytes(q + k + Vec::kWidth);
      for (int i = 0; i < kCount; ++i) {
        const float* const from = x + i * columns + k;
        sums[2 * i] = Vec::fma(first, Vec::load(from), sums[2 * i]);
        sums[2 * i + 1] = Vec::fma(second, Vec::load(from + Vec::kWidth), sums[2 * i + 1]);
      }
    }
    for (int i = 0; i < kCount; ++i) {
      float sum = sums[2 * i].sum() + sums[2 * i + 1].sum();
      for (int64_t k = whole; k < columns; ++k)
        sum += x[i * columns + k] * static_cast<float>(q[k]);
      y[i * y_stride + row] = sum * scales[row];
    }
  }
}

template <class Vec, int kCount>
void multiply4(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
               const float* x, const float* x_sums, float* y, int64_t y_stride) {
  const int64_t columns = layout.columns, groups = layout.groups();
  constexpr int64_t kParts = PackedLayout::kBlock / Vec::kWidth;
  for (int64_t row = begin; row < end; ++row) {
    const uint8_t* bytes = packed + static_cast<size_t>(row) * layout.row_bytes();
    const uint32_t* const words = words_of(layout, packed) + row * groups;
    Vec sums[kCount];
    for (Vec& sum : sums) sum = Vec::zero();
    int64_t k = 0;
    for (int64_t g = 0; g < groups; ++g) {
      Vec parts[kCount];
      for (Vec& part : parts) part = Vec::zero();
      for (const int64_t last = k + layout.group; k < last; k += PackedLayout::kBlock) {
        Vec weights[kParts];
        Vec::nibbles(bytes, weights);
        bytes += kHalfBlock;
        for (int i = 0; i < kCount; ++i) {
          const float* const from = x + i * columns + k;
          for (int64_t part = 0; part < kParts; ++part)
            parts[i] = Vec::fma(weights[part], Vec::load(from + part * Vec::kWidth), parts[i]);
        }
      }
      const Vec scale = Vec::broadcast(scale_of(words[g]));
      for (int i = 0; i < kCount; ++i) sums[i] = Vec::fma(scale, parts[i], sums[i]);
    }
    for (int i = 0; i < kCount; ++i) {
      float sum = sums[i].sum();
      for (int64_t g = 0; g < groups; ++g) sum += zero_of(words[g]) * x_sums[i * groups + g];
      y[i * y_stride + row] = sum;
    }
  }
}

template <class Vec, int kCount>
void multiply_some(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
                   const float* x, const float* sums, float* y, int64_t y_stride) {
  if (layout.bits == 8) {
    multiply8<Vec, kCount>(layout, packed, begin, end, x, y, y_stride);
  } else {
    multiply4<Vec, kCount>(layout, packed, begin, end, x, sums, y, y_stride);
  }
}

template <class Vec>
void multiply_with(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
                   const float* x, const float* sums, int64_t count, float* y, int64_t y_stride) {
  for (int64_t i = 0; i < count; i += 4) {
    const float* const from = x + i * layout.columns;
    const float* const of_groups = sums == nullptr ? nullptr : sums + i * layout.groups();
    float* const to = y + i * y_stride;
    const auto some = count - i >= 4   ? &multiply_some<Vec, 4>
                      : count - i == 3 ? &multiply_some<Vec, 3>
                      : count - i == 2 ? &multiply_some<Vec, 2>
                                       : &multiply_some<Vec, 1>;
    some(layout, packed, begin, end, from, of_groups, to, y_stride);
  }
}

template <class Vec>
void unpack_with(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
                 float* weights) {
  const int64_t columns = layout.columns;
  constexpr int64_t kParts = PackedLayout::kBlock / Vec::kWidth;
  for (int64_t row = begin; row < end; ++row, weights += columns) {
    if (layout.bits == 8) {
      const auto* const q = reinterpret_cast<const int8_t*>(packed) + row * columns;
      const float scale = reinterpret_cast<const float*>(packed + layout.scales_begin())[row];
      int64_t k = 0;
      for (; k + Vec::kWidth <= columns; k += Vec::kWidth)
        Vec::fma(Vec::of_bytes(q + k), Vec::broadcast(scale), Vec::zero()).store(weights + k);
      for (; k < columns; ++k) weights[k] = static_cast<float>(q[k]) * scale;
      continue;
    }
    const uint8_t* bytes = packed + static_cast<size_t>(row) * layout.row_bytes();
    const uint32_t* const words = words_of(layout, packed) + row * layout.groups();
    for (int64_t k = 0; k < columns; k += PackedLayout::kBlock, bytes += kHalfBlock) {
      const uint32_t word = words[k / layout.group];
      const Vec scale = Vec::broadcast(scale_of(word)), zero = Vec::broadcast(zero_of(word));
      Vec parts[kParts];
      Vec::nibbles(bytes, parts);
      for (int64_t part = 0; part < kParts; ++part)
        Vec::fma(parts[part], scale, zero).store(weights + k + part * Vec::kWidth);
    }
  }
}

}  // namespace
}  // namespace coupler::quantization
