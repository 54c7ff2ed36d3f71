// f16 and bf16 as 16-bit patterns: conversion from and to float, rounding to nearest-even, written
// without branches so that loops over it vectorize. Internal linkage on purpose: this header is
// compiled for several instruction sets, and the copies must not be merged.
#pragma once

#include <cstdint>

namespace db {
namespace {

inline uint32_t float_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float bits_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

struct BFloat16 {
  uint16_t bits;
  static inline float load(uint16_t bits) { return bits_float(uint32_t{bits} << 16); }
  static inline uint16_t store(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

struct Float16 {
  uint16_t bits;
  static inline float load(uint16_t bits) {
    // Exponent and mantissa, moved to a float's position, give the value times 2^-112. Integer
    // arithmetic corrects the exponent, so that flush-to-zero modes have no effect.
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = normal + (112u << 23);  // infinity and NaN
    const uint32_t tiny = float_bits(bits_float((magnitude << 13) + (113u << 23)) -
                                     bits_float(113u << 23));  // subnormal: 2^-14 * m / 1024
    const uint32_t result = magnitude >= 0x7c00u ? special : magnitude < 0x400u ? tiny : normal;
    return bits_float(result | sign);
  }
  static inline uint16_t store(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t tiny = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t special =
        magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x1ffu) : 0x7c00u;
    const uint32_t result = magnitude >= 0x47800000u  ? special
                            : magnitude < 0x38800000u ? tiny
                                                      : normal;
    return static_cast<uint16_t>(result | sign);
  }
};

}  // namespace
}  // namespace db
