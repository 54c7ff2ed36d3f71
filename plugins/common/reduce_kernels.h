// The loops of reduce.h, compiled once for every instruction set that includes this file. All of it
// is in an unnamed namespace and calls no library function: the linker must never substitute a copy
// compiled for AVX2 for the plain one. Included only by reduce_plain.cc and reduce_avx2.cc.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <cstdint>

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

// Before a loop: its iterations are independent, even if the pointers seem to alias.
#if defined(__clang__)
#define DB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DB_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace db {
namespace {

// ---- How a type is loaded, computed in and stored ----

template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};

// Signed integers are computed as unsigned when they may wrap around.
template <class S, class U>
struct Integer : Plain<S> {
  using Unsigned = U;
};

template <class H>
struct Half {
  using Stored = uint16_t;
  using Value = float;
  static float load(uint16_t v) { return H::load(v); }
  static uint16_t store(float v) { return H::store(v); }
};

struct Bool {
  using Stored = uint8_t;
  using Value = uint8_t;
  static uint8_t load(uint8_t v) { return v != 0; }
  static uint8_t store(uint8_t v) { return v; }
};

// ---- The operations ----

struct Sum {
  template <class V>
  static V of(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class V>
  static V of(V a, V b) {
    return a * b;
  }
};
struct Min {
  template <class V>
  static V of(V a, V b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class V>
  static V of(V a, V b) {
    return a < b ? b : a;
  }
};
struct And {
  template <class V>
  static V of(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct Or {
  template <class V>
  static V of(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct Xor {
  template <class V>
  static V of(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};
// uint64_t holds every product and sum of two narrower values; the cast back wraps around.
template <class F, class S, class U>
struct Wrapping {
  static S of(S a, S b) {
    return static_cast<S>(
        static_cast<U>(F::of(uint64_t{static_cast<U>(a)}, uint64_t{static_cast<U>(b)})));
  }
};

template <class T, class F>
void combine(void* out, const void* a, const void* b, size_t count) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(out);
  const S* const x = static_cast<const S*>(a);
  const S* const y = static_cast<const S*>(b);
  if (o == x) {  // lets the compiler vectorize the in-place case
    DB_INDEPENDENT
    for (size_t i = 0; i < count; ++i) o[i] = T::store(F::of(T::load(o[i]), T::load(y[i])));
  } else {
    DB_INDEPENDENT
    for (size_t i = 0; i < count; ++i) o[i] = T::store(F::of(T::load(x[i]), T::load(y[i])));
  }
}

template <class T, class Factor>
void scale_by(void* out, const void* in, size_t count, double factor) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(out);
  const S* const x = static_cast<const S*>(in);
  const Factor f = static_cast<Factor>(factor);
  DB_INDEPENDENT
  for (size_t i = 0; i < count; ++i)
    o[i] = T::store(static_cast<typename T::Value>(T::load(x[i]) * f));
}

template <class T, class Divisor>
void divide_by(void* data, size_t count, int32_t divisor) {
  using S = typename T::Stored;
  S* const o = static_cast<S*>(data);
  const Divisor d = static_cast<Divisor>(divisor);
  DB_INDEPENDENT
  for (size_t i = 0; i < count; ++i)
    o[i] = T::store(static_cast<typename T::Value>(T::load(o[i]) / d));
}

template <class S, class U>
constexpr ReduceRow integer_row() {
  using T = Integer<S, U>;
  return {{combine<T, Wrapping<Sum, S, U>>, combine<T, Wrapping<Product, S, U>>, combine<T, Min>,
           combine<T, Max>, combine<T, Wrapping<Sum, S, U>>, nullptr, combine<T, And>,
           combine<T, Or>, combine<T, Xor>},
          nullptr,
          divide_by<T, S>};
}

template <class T>
constexpr ReduceRow floating_row() {
  using V = typename T::Value;
  return {{combine<T, Sum>, combine<T, Product>, combine<T, Min>, combine<T, Max>, combine<T, Sum>,
           combine<T, Sum>, nullptr, nullptr, nullptr},
          scale_by<T, V>,
          divide_by<T, V>};
}

constexpr ReduceRow bool_row() {
  return {{combine<Bool, Or>, combine<Bool, And>, combine<Bool, And>, combine<Bool, Or>, nullptr,
           nullptr, combine<Bool, And>, combine<Bool, Or>, combine<Bool, Xor>},
          nullptr,
          nullptr};
}

constexpr ReduceTable make_table() {
  return {{integer_row<int8_t, uint8_t>(), integer_row<uint8_t, uint8_t>(),
           integer_row<int16_t, uint16_t>(), integer_row<uint16_t, uint16_t>(),
           integer_row<int32_t, uint32_t>(), integer_row<uint32_t, uint32_t>(),
           integer_row<int64_t, uint64_t>(), integer_row<uint64_t, uint64_t>(),
           floating_row<Half<Float16>>(), floating_row<Half<BFloat16>>(),
           floating_row<Plain<float>>(), floating_row<Plain<double>>(), bool_row()}};
}

}  // namespace

}  // namespace db
