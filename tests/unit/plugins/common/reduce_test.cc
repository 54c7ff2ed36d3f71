// The arithmetic kernels against a naive reference: every type and reduction, a range of lengths
// and alignments, in-place or not, on both instruction sets.
#include "common/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/op.h"

namespace db {
namespace {

template <class S, class U>
S integer(db_reduce reduce, S a, S b) {
  switch (reduce) {
    case DB_SUM:
    case DB_AVG:
      return static_cast<S>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    case DB_PROD:
      return static_cast<S>(static_cast<U>(uint64_t{static_cast<U>(a)} * static_cast<U>(b)));
    case DB_MIN:
      return std::min(a, b);
    case DB_MAX:
      return std::max(a, b);
    case DB_BAND:
      return static_cast<S>(a & b);
    case DB_BOR:
      return static_cast<S>(a | b);
    default:
      return static_cast<S>(a ^ b);
  }
}

template <class F>
F floating(db_reduce reduce, F a, F b) {
  switch (reduce) {
    case DB_PROD:
      return a * b;
    case DB_MIN:
      return std::min(a, b);
    case DB_MAX:
      return std::max(a, b);
    default:
      return a + b;
  }
}

uint8_t boolean(db_reduce reduce, uint8_t a, uint8_t b) {
  if (reduce == DB_BXOR) return a ^ b;
  return reduce == DB_SUM || reduce == DB_MAX || reduce == DB_BOR ? a | b : a & b;
}

template <class S, class F>
void each(const std::vector<char>& a, const std::vector<char>& b, std::vector<char>* out, F f) {
  for (size_t i = 0; i < a.size(); i += sizeof(S)) {
    S x, y;
    std::memcpy(&x, &a[i], sizeof(S));
    std::memcpy(&y, &b[i], sizeof(S));
    const S z = f(x, y);
    std::memcpy(&(*out)[i], &z, sizeof(S));
  }
}

template <class S, class U>
void each_integer(db_reduce r, const std::vector<char>& a, const std::vector<char>& b,
                  std::vector<char>* out) {
  each<S>(a, b, out, [r](S x, S y) { return integer<S, U>(r, x, y); });
}

std::vector<char> naive(db_dtype dtype, db_reduce r, const std::vector<char>& a,
                        const std::vector<char>& b) {
  std::vector<char> out(a.size());
  switch (dtype) {
    case DB_I8:
      each_integer<int8_t, uint8_t>(r, a, b, &out);
      break;
    case DB_U8:
      each_integer<uint8_t, uint8_t>(r, a, b, &out);
      break;
    case DB_I16:
      each_integer<int16_t, uint16_t>(r, a, b, &out);
      break;
    case DB_U16:
      each_integer<uint16_t, uint16_t>(r, a, b, &out);
      break;
    case DB_I32:
      each_integer<int32_t, uint32_t>(r, a, b, &out);
      break;
    case DB_U32:
      each_integer<uint32_t, uint32_t>(r, a, b, &out);
      break;
    case DB_I64:
      each_integer<int64_t, uint64_t>(r, a, b, &out);
      break;
    case DB_U64:
      each_integer<uint64_t, uint64_t>(r, a, b, &out);
      break;
    case DB_F16:
      each<uint16_t>(a, b, &out, [r](uint16_t x, uint16_t y) {
        return float_to_f16(floating(r, f16_to_float(x), f16_to_float(y)));
      });
      break;
    case DB_BF16:
      each<uint16_t>(a, b, &out, [r](uint16_t x, uint16_t y) {
        return float_to_bf16(floating(r, bf16_to_float(x), bf16_to_float(y)));
      });
      break;
    case DB_F32:
      each<float>(a, b, &out, [r](float x, float y) { return floating(r, x, y); });
      break;
    case DB_F64:
      each<double>(a, b, &out, [r](double x, double y) { return floating(r, x, y); });
      break;
    default:
      each<uint8_t>(a, b, &out, [r](uint8_t x, uint8_t y) { return boolean(r, x, y); });
  }
  return out;
}

// Random values of a type: arbitrary bits for integers, finite numbers for floating types.
std::vector<char> random_values(db_dtype dtype, size_t count, std::mt19937* random) {
  const size_t element = dtype_size(dtype);
  std::vector<char> bytes(count * element);
  std::uniform_real_distribution<double> real(-100, 100);
  for (size_t i = 0; i < count; ++i) {
    char* const at = &bytes[i * element];
    const double value = real(*random);
    const auto single = static_cast<float>(value);
    const uint64_t bits = (uint64_t{(*random)()} << 32) | (*random)();
    const uint16_t half = dtype == DB_F16 ? float_to_f16(single) : float_to_bf16(single);
    if (dtype == DB_BOOL)
      *at = static_cast<char>(bits & 1);
    else if (dtype == DB_F64)
      std::memcpy(at, &value, element);
    else if (dtype == DB_F32)
      std::memcpy(at, &single, element);
    else if (is_floating(dtype))
      std::memcpy(at, &half, element);
    else
      std::memcpy(at, &bits, element);
  }
  return bytes;
}

std::vector<const ReduceTable*> tables() {
  std::vector<const ReduceTable*> all = {&kReducePlain};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back(&kReduceAvx2);
#endif
  return all;
}

TEST(Reduce_EveryTypeAndReduction, EqualsTheNaiveReference) {
  std::mt19937 random(7);
  for (const ReduceTable* table : tables()) {
    for (db_dtype dtype = DB_I8; dtype <= DB_BOOL; ++dtype) {
      for (db_reduce reduce = DB_SUM; reduce <= DB_BXOR; ++reduce) {
        const ReduceFunction function = table->rows[dtype - 1].combine[reduce - 1];
        ASSERT_EQ(function != nullptr, is_reducible(dtype, reduce));
        if (function == nullptr) continue;
        for (const size_t count : {0, 1, 3, 8, 31, 64, 1009}) {
          const auto a = random_values(dtype, count, &random);
          const auto b = random_values(dtype, count, &random);
          const auto expected = naive(dtype, reduce, a, b);
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + reduce_name(reduce));
          std::vector<char> out(a.size()), left = a, right = b;
          function(out.data(), a.data(), b.data(), count);
          EXPECT_EQ(out, expected);
          function(left.data(), left.data(), b.data(), count);
          EXPECT_EQ(left, expected) << "out is a";
          function(right.data(), a.data(), right.data(), count);
          EXPECT_EQ(right, expected) << "out is b";
        }
      }
    }
  }
}

TEST(Reduce_Undefined, HasNoFunction) {
  EXPECT_EQ(reduce_function(DB_F8_E4M3FN, DB_SUM), nullptr);
  EXPECT_EQ(reduce_function(DB_BOOL, DB_AVG), nullptr);
  EXPECT_EQ(reduce_function(DB_F32, DB_BAND), nullptr);
  EXPECT_EQ(reduce_function(DB_I32, DB_PREMUL_SUM), nullptr);
  EXPECT_EQ(reduce_function(0, DB_SUM), nullptr);
  EXPECT_EQ(reduce_function(DB_I32, 99), nullptr);
}

TEST(Divide_Integers_TruncateTowardZero, AndUnsignedStayUnsigned) {
  int32_t numbers[] = {7, -7, 8, -1};
  divide(DB_I32, numbers, 4, 2);
  EXPECT_EQ(numbers[0], 3);
  EXPECT_EQ(numbers[1], -3);
  EXPECT_EQ(numbers[3], 0);
  uint64_t large[] = {std::numeric_limits<uint64_t>::max()};
  divide(DB_U64, large, 1, 3);
  EXPECT_EQ(large[0], std::numeric_limits<uint64_t>::max() / 3);
  int8_t narrow[] = {100, -100};  // by more ranks than the type can count
  divide(DB_I8, narrow, 2, 256);
  EXPECT_EQ(narrow[0], 0);
  EXPECT_EQ(narrow[1], 0);
}

TEST(Scale_FloatingTypes_MultipliesInPlaceOrNot, AtEveryWidth) {
  float in[] = {1, -2, 3}, out[3];
  scale(DB_F32, out, in, 3, 0.5);
  EXPECT_EQ(out[1], -1.0f);
  uint16_t half[] = {float_to_f16(3)};
  scale(DB_F16, half, half, 1, 1.5);
  EXPECT_EQ(f16_to_float(half[0]), 4.5f);
  double wide[] = {0.1};
  scale(DB_F64, wide, wide, 1, 0.1);
  EXPECT_EQ(wide[0], 0.1 * 0.1);
}

TEST(Half_AllValues_ComeBackUnchanged, ExceptNaNsThatStayNaN) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float f = f16_to_float(half), b = bf16_to_float(half);
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(f))));
    else
      EXPECT_EQ(float_to_f16(f), half);
    if (std::isnan(b))
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(b))));
    else
      EXPECT_EQ(float_to_bf16(b), half);
  }
}

TEST(Half_Rounding_IsToNearestEven, AndOverflowsToInfinity) {
  EXPECT_EQ(f16_to_float(float_to_f16(2049.0f)), 2048.0f);  // a tie, to even
  EXPECT_EQ(f16_to_float(float_to_f16(2051.0f)), 2052.0f);
  EXPECT_TRUE(std::isinf(f16_to_float(float_to_f16(65520.0f))));
  EXPECT_EQ(f16_to_float(float_to_f16(65519.0f)), 65504.0f);
  EXPECT_EQ(f16_to_float(float_to_f16(std::ldexp(1.0f, -25))), 0.0f);  // half of the smallest
  EXPECT_EQ(f16_to_float(float_to_f16(std::ldexp(1.5f, -25))), std::ldexp(1.0f, -24));
  EXPECT_EQ(bf16_to_float(float_to_bf16(257.0f)), 256.0f);
  EXPECT_EQ(bf16_to_float(float_to_bf16(259.0f)), 260.0f);
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max()))));
}

}  // namespace
}  // namespace db
