// The loops of reduce.h, compiled once for every instruction set that includes this file. All of it
// is in an unnamed namespace and calls no library function: the linker must never substitute a copy
// compiled for AVX2 for the plain one. Included only by reduce_plain.cc and reduce_avx2.cc.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/reduce.h"

namespace db {

// f16 and bf16 as 16-bit patterns: conversion from and to float, rounding to nearest-even, written
// without branches so that loops over it vectorize. Internal linkage on purpose: this header is
// compiled for several instruction sets, and the copies must not be merged.

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
  using Stored = uint16_t;
  using Value = float;
  static inline float load(uint16_t bits) { return bits_float(uint32_t{bits} << 16); }
  static inline uint16_t store(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Value = float;
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

// Before a loop: its iterations are independent, even if the pointers seem to alias.
#if defined(__clang__)
#define DB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DB_INDEPENDENT _Pragma("GCC ivdep")
#endif

// ---- How another type is loaded, computed in and stored ----

template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};

struct Bool {
  using Stored = uint8_t;
  using Value = uint8_t;
  static uint8_t load(uint8_t v) { return v != 0; }
  static uint8_t store(uint8_t v) { return v; }
};

// ---- The operations ----

constexpr auto kSum = [](auto a, auto b) { return a + b; };
constexpr auto kProduct = [](auto a, auto b) { return a * b; };
constexpr auto kMin = [](auto a, auto b) { return b < a ? b : a; };
constexpr auto kMax = [](auto a, auto b) { return a < b ? b : a; };
constexpr auto kAnd = [](auto a, auto b) { return static_cast<decltype(a)>(a & b); };
constexpr auto kOr = [](auto a, auto b) { return static_cast<decltype(a)>(a | b); };
constexpr auto kXor = [](auto a, auto b) { return static_cast<decltype(a)>(a ^ b); };

// Signed integers are computed as unsigned, since they may wrap around: uint64_t holds every
// product and sum of two narrower values, and the cast back wraps around.
template <class F, class S>
struct Wrapping {
  using U = std::make_unsigned_t<S>;
  S operator()(S a, S b) const {
    return static_cast<S>(
        static_cast<U>(F()(uint64_t{static_cast<U>(a)}, uint64_t{static_cast<U>(b)})));
  }
};

template <class S, class F>
constexpr Wrapping<F, S> wrapping(F) {
  return {};
}

template <class T, class F>
void combine_all(void* out, const void* a, const void* b, size_t count) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(out);
  const S* const x = static_cast<const S*>(a);
  const S* const y = static_cast<const S*>(b);
  if (o == x) {  // lets the compiler vectorize the in-place case
    DB_INDEPENDENT
    for (size_t i = 0; i < count; ++i) o[i] = T::store(F()(T::load(o[i]), T::load(y[i])));
  } else {
    DB_INDEPENDENT
    for (size_t i = 0; i < count; ++i) o[i] = T::store(F()(T::load(x[i]), T::load(y[i])));
  }
}

template <class T, class F>
constexpr ReduceFunction combine(F) {
  return combine_all<T, F>;
}

template <class T>
void scale_by(void* out, const void* in, size_t count, double factor) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(out);
  const S* const x = static_cast<const S*>(in);
  const auto f = static_cast<typename T::Value>(factor);
  DB_INDEPENDENT
  for (size_t i = 0; i < count; ++i)
    o[i] = T::store(static_cast<typename T::Value>(T::load(x[i]) * f));
}

template <class T>
void divide_by(void* data, size_t count, int32_t divisor) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(data);
  // At least 32 bits: a narrower type may be too small for the number of ranks.
  const auto d = static_cast<std::common_type_t<typename T::Value, int32_t>>(divisor);
  DB_INDEPENDENT
  for (size_t i = 0; i < count; ++i)
    o[i] = T::store(static_cast<typename T::Value>(T::load(o[i]) / d));
}

template <class S>
constexpr ReduceRow integer_row() {
  using T = Plain<S>;
  return {{combine<T>(wrapping<S>(kSum)), combine<T>(wrapping<S>(kProduct)), combine<T>(kMin),
           combine<T>(kMax), combine<T>(wrapping<S>(kSum)), nullptr, combine<T>(kAnd),
           combine<T>(kOr), combine<T>(kXor)},
          nullptr,
          divide_by<T>};
}

template <class T>
constexpr ReduceRow floating_row() {
  return {{combine<T>(kSum), combine<T>(kProduct), combine<T>(kMin), combine<T>(kMax),
           combine<T>(kSum), combine<T>(kSum), nullptr, nullptr, nullptr},
          scale_by<T>,
          divide_by<T>};
}

constexpr ReduceRow bool_row() {
  return {{combine<Bool>(kOr), combine<Bool>(kAnd), combine<Bool>(kAnd), combine<Bool>(kOr),
           nullptr, nullptr, combine<Bool>(kAnd), combine<Bool>(kOr), combine<Bool>(kXor)},
          nullptr,
          nullptr};
}

constexpr ReduceTable make_table() {
  return {{integer_row<int8_t>(), integer_row<uint8_t>(), integer_row<int16_t>(),
           integer_row<uint16_t>(), integer_row<int32_t>(), integer_row<uint32_t>(),
           integer_row<int64_t>(), integer_row<uint64_t>(), floating_row<Float16>(),
           floating_row<BFloat16>(), floating_row<Plain<float>>(), floating_row<Plain<double>>(),
           bool_row()}};
}

}  // namespace

}  // namespace db
