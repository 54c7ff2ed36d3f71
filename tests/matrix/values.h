// Elements of every dtype, deterministic contents for the buffers, and the naive reference of each
// reduction. The numbers are chosen so that every correct implementation gets exactly the same
// bits. Pure functions, which any thread may call.
#pragma once

#include <coupler/distributed_backend.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace coupler::matrix {

// f16 and bf16, converted through double: slow, and independent of the plugins' own conversions.
template <int kExponent, int kMantissa>
struct SmallFloat {
  uint16_t bits = 0;
  static SmallFloat from(double value) {
    SmallFloat result;
    if (value == 0) return result;
    const bool negative = value < 0;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
    constexpr int kBias = (1 << (kExponent - 1)) - 1;
    auto mantissa = static_cast<int64_t>(std::nearbyint(std::ldexp(fraction, kMantissa + 1)));
    if (mantissa == int64_t{2} << kMantissa) {
      mantissa /= 2;
      ++exponent;
    }
    const int64_t biased = exponent - 1 + kBias;
    result.bits =
        static_cast<uint16_t>(biased << kMantissa | (mantissa & ((int64_t{1} << kMantissa) - 1)) |
                              (negative ? 0x8000 : 0));
    return result;
  }
  double value() const {
    const int exponent = bits >> kMantissa & ((1 << kExponent) - 1);
    const int mantissa = bits & ((1 << kMantissa) - 1);
    constexpr int kBias = (1 << (kExponent - 1)) - 1;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, 1 - kBias - kMantissa)
                      : std::ldexp(mantissa | 1 << kMantissa, exponent - kBias - kMantissa);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
};
using Half = SmallFloat<5, 10>;
using BFloat = SmallFloat<8, 7>;
struct Bool {
  uint8_t bits = 0;
};
struct Byte {  // fp8: moved but never reduced
  uint8_t bits = 0;
};

// Calls function with a value of dtype's type.
template <typename Function>
auto visit(db_dtype dtype, Function function) {
  switch (dtype) {
    case DB_I8:
      return function(int8_t{});
    case DB_U8:
      return function(uint8_t{});
    case DB_I16:
      return function(int16_t{});
    case DB_U16:
      return function(uint16_t{});
    case DB_I32:
      return function(int32_t{});
    case DB_U32:
      return function(uint32_t{});
    case DB_I64:
      return function(int64_t{});
    case DB_U64:
      return function(uint64_t{});
    case DB_F16:
      return function(Half{});
    case DB_BF16:
      return function(BFloat{});
    case DB_F32:
      return function(float{});
    case DB_F64:
      return function(double{});
    case DB_BOOL:
      return function(Bool{});
    default:
      return function(Byte{});
  }
}

inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xbf58476d1ce4e5b9u ^ (c + 1) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 29;
}

template <typename T>
constexpr bool is_floating =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;

// Converts a number to Half or BFloat, and back. Multiples of 0.5 up to 256, the most common ones,
// are converted once.
template <typename T>
T small_float_of(double number) {
  constexpr int kMost = 256;
  static const std::vector<T> known = [] {
    std::vector<T> values;
    for (int i = -2 * kMost; i <= 2 * kMost; ++i) values.push_back(T::from(i / 2.0));
    return values;
  }();
  const double place = 2 * number + 2 * kMost;
  const bool is_known = place >= 0 && place <= 4 * kMost && place == std::floor(place);
  return is_known ? known[static_cast<size_t>(place)] : T::from(number);
}
template <typename T>
double number_of(T value) {
  static const std::vector<double> known = [] {
    std::vector<double> values;
    for (int bits = 0; bits < 1 << 16; ++bits) {
      values.push_back(T{static_cast<uint16_t>(bits)}.value());
    }
    return values;
  }();
  return known[value.bits];
}

template <typename T>
T from_number(double number) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat>) {
    return small_float_of<T>(number);
  } else {
    return static_cast<T>(number);
  }
}

template <typename T>
double to_number(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat>) {
    return number_of(value);
  } else {
    return static_cast<double>(value);
  }
}

// The rank's input at index; reduce 0: arbitrary bits to be moved.
template <typename T>
T element(db_reduce reduce, int world_size, uint64_t seed, int rank, uint64_t index) {
  const uint64_t random = mix(seed, static_cast<uint64_t>(rank), index);
  if constexpr (std::is_same_v<T, Bool>) {
    // Mostly 1 for "and", mostly 0 for "or", so that both results occur.
    const bool rare = random % 4 == 0;
    return {static_cast<uint8_t>(
        reduce == DB_PROD || reduce == DB_MIN || reduce == DB_BAND ? !rare : rare)};
  } else if constexpr (std::is_same_v<T, Byte>) {
    return {static_cast<uint8_t>(random)};
  } else if constexpr (is_floating<T>) {
    switch (reduce) {
      case DB_PROD:  // up to four factors of 3, since bf16 has 8 bits
        return from_number<T>(static_cast<double>(random % (rank < 4 ? 3 : 2) + 1) *
                              (random & 8 ? -1 : 1));
      case DB_AVG:  // the sum divides by the number of ranks
        return from_number<T>(static_cast<double>(random % 8) * world_size);
      default:
        return from_number<T>(static_cast<double>(random % 32) - 16);
    }
  } else {
    switch (reduce) {
      case DB_PROD:
        return static_cast<T>(random % 5 + 1);
      case DB_AVG:
        return static_cast<T>(static_cast<int64_t>(random % 16) - (std::is_signed_v<T> ? 10 : 0));
      default:
        return static_cast<T>(random);  // all bits: sums wrap around
    }
  }
}

constexpr double kPremulScale = 0.5;

// values: one for each rank. Sums, products and quotients of the values above are exact.
template <typename T>
T reference(db_reduce reduce, const std::vector<T>& values) {
  if constexpr (std::is_same_v<T, Bool> || std::is_same_v<T, Byte>) {
    uint8_t result = values[0].bits;
    for (size_t i = 1; i < values.size(); ++i) {
      const uint8_t next = values[i].bits;
      if (reduce == DB_BXOR) {
        result ^= next;
      } else if (reduce == DB_PROD || reduce == DB_MIN || reduce == DB_BAND) {
        result &= next;
      } else {
        result |= next;
      }
    }
    return {result};
  } else if constexpr (is_floating<T>) {
    double result = to_number(values[0]) * (reduce == DB_PREMUL_SUM ? kPremulScale : 1);
    for (size_t i = 1; i < values.size(); ++i) {
      const double next = to_number(values[i]);
      switch (reduce) {
        case DB_PROD:
          result *= next;
          break;
        case DB_MIN:
          result = std::fmin(result, next);
          break;
        case DB_MAX:
          result = std::fmax(result, next);
          break;
        default:
          result += next * (reduce == DB_PREMUL_SUM ? kPremulScale : 1);
      }
    }
    if (reduce == DB_AVG) result /= static_cast<double>(values.size());
    return from_number<T>(result);
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    T result = values[0];
    auto wide = static_cast<Wide>(values[0]);
    for (size_t i = 1; i < values.size(); ++i) {
      const T next = values[i];
      const auto bits = static_cast<uint64_t>(result);
      switch (reduce) {
        case DB_PROD:
          result = static_cast<T>(bits * static_cast<uint64_t>(next));
          break;
        case DB_MIN:
          result = next < result ? next : result;
          break;
        case DB_MAX:
          result = next > result ? next : result;
          break;
        case DB_BAND:
          result = static_cast<T>(result & next);
          break;
        case DB_BOR:
          result = static_cast<T>(result | next);
          break;
        case DB_BXOR:
          result = static_cast<T>(result ^ next);
          break;
        case DB_AVG:
          wide += static_cast<Wide>(next);
          break;
        default:
          result = static_cast<T>(bits + static_cast<uint64_t>(next));
      }
    }
    if (reduce == DB_AVG) return static_cast<T>(wide / static_cast<Wide>(values.size()));
    return result;
  }
}

// Whether the ABI defines the reduction for that dtype.
inline bool is_defined(db_dtype dtype, db_reduce reduce) {
  if (dtype == DB_F8_E4M3FN || dtype == DB_F8_E5M2) return false;
  const bool floating = dtype == DB_F16 || dtype == DB_BF16 || dtype == DB_F32 || dtype == DB_F64;
  const bool bitwise = reduce == DB_BAND || reduce == DB_BOR || reduce == DB_BXOR;
  if (bitwise) return !floating;
  if (reduce == DB_PREMUL_SUM) return floating;
  if (reduce == DB_AVG) return dtype != DB_BOOL;
  return true;
}

// Whether a backend for that memory should support it; for CUDA memory, what NCCL supports.
inline bool is_offered(db_memory memory, db_dtype dtype, db_reduce reduce) {
  if (!is_defined(dtype, reduce)) return false;
  if (memory != DB_MEMORY_CUDA) return true;
  if (dtype == DB_BOOL) return reduce != DB_BXOR;
  return dtype != DB_I16 && dtype != DB_U16 && reduce <= DB_PREMUL_SUM;
}

}  // namespace coupler::matrix
