// Packing against naive implementations of the formulas; every kernel set against the packed data.
#include "quantize/pack.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quantize/kernels.h"
#include "quantize/packed_weight.h"

namespace coupler::quantization {
namespace {

struct PackCase {
  PackedLayout layout;
  float scale = 1;
};

std::vector<PackCase> pack_cases() {
  std::vector<PackCase> all;
  for (const int64_t rows : {1, 3, 17}) {
    for (const int64_t columns : {1, 7, 31, 32, 100, 257})
      all.push_back({{8, rows, columns, 0}, 0.02F});
    for (const int64_t group : {32, 64, 128, 256})
      for (const int64_t groups : {1, 3}) all.push_back({{4, rows, group * groups, group}, 5});
  }
  return all;
}

at::Tensor weights_of(const PackCase& of) {
  torch::manual_seed(of.layout.rows * 1000 + of.layout.columns);
  return at::randn({of.layout.rows, of.layout.columns}) * of.scale;
}

std::vector<const PackedKernels*> kernels() {
  std::vector<const PackedKernels*> all = {&kPackedScalar};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(&kPackedAvx2);
  if (__builtin_cpu_supports("avx512f")) all.push_back(&kPackedAvx512);
#endif
  return all;
}

at::Tensor unpacked(const PackedKernels& with, const PackedLayout& layout,
                    const at::Tensor& packed) {
  const at::Tensor result = at::zeros({layout.rows, layout.columns});
  with.unpack(layout, packed.const_data_ptr<uint8_t>(), 0, layout.rows,
              result.mutable_data_ptr<float>());
  return result;
}

// A rounding error of half a step, plus the overshoot at the ends of the range from rounding a
// 4-bit scale and zero to bfloat16 (2^-9 of the largest weight each, 8 bits of scale).
double step_of(const PackCase& of, const at::Tensor& group) {
  const double most = group.abs().max().item<double>();
  if (of.layout.bits == 8) return most / 127 / 2 * 1.0001;
  const double step = (group.max() - group.min()).item<double>() / 15;
  return step / 2 * 1.005 + 8 * step / 256 + most / 256;
}

TEST(Pack, EveryWeight_IsWithinHalfAStep) {
  for (const PackCase& of : pack_cases()) {
    const at::Tensor weights = weights_of(of);
    const auto [packed, error] = pack(of.layout, weights, false, "w");
    const at::Tensor back = unpacked(kPackedScalar, of.layout, packed);
    const int64_t group = of.layout.bits == 8 ? of.layout.columns : of.layout.group;
    for (int64_t row = 0; row < of.layout.rows; ++row) {
      for (int64_t k = 0; k < of.layout.columns; k += group) {
        const at::Tensor part = weights[row].slice(0, k, k + group);
        const at::Tensor off = (back[row].slice(0, k, k + group) - part).abs().max();
        EXPECT_LE(off.item<double>(), step_of(of, part)) << of.layout.bits << " bits";
      }
    }
    EXPECT_NEAR(error.most, (back - weights).abs().max().item<double>(), 1e-6 * of.scale);
    EXPECT_NEAR(error.relative(), ((back - weights).norm() / weights.norm()).item<double>(), 1e-5);
  }
}

TEST(Pack, Int8_IsTheNaiveFormula) {
  const PackCase of{{8, 5, 70, 0}, 1};
  const at::Tensor weights = weights_of(of);
  const at::Tensor scale = weights.abs().amax(1, true) / 127;
  const at::Tensor expected = (weights / scale).round().clamp(-127, 127) * scale;
  const at::Tensor packed = pack(of.layout, weights, false, "w").first;
  // A weight halfway between two levels may round to either.
  const at::Tensor off = (unpacked(kPackedScalar, of.layout, packed) - expected).abs();
  EXPECT_LE(off.gt(1e-6).sum().item<int64_t>(), 1);
}

// The parts of the format that are stored in files, byte by byte.
TEST(Pack, Bytes_AreTheDocumentedOnes) {
  std::vector<float> weights(32);
  for (size_t i = 0; i < 32; ++i) weights[i] = static_cast<float>(i % 16);
  const PackedLayout four{4, 1, 32, 32};
  std::vector<uint8_t> packed(four.bytes());
  EXPECT_EQ(packed.size(), 128U);
  EXPECT_EQ(pack_rows(four, 0, 1, weights.data(), packed.data()).most, 0);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(packed[i], i * 17) << i;
  // Scale 1 (0x3f80) in the upper half, zero 8 (0x4100) in the lower.
  const uint32_t word = *reinterpret_cast<const uint32_t*>(packed.data() + four.scales_begin());
  EXPECT_EQ(word, 0x3f804100U);
  const PackedLayout eight{8, 1, 2, 0};
  std::vector<uint8_t> bytes(eight.bytes());
  const std::vector<float> pair = {-254, 100};
  pack_rows(eight, 0, 1, pair.data(), bytes.data());
  EXPECT_EQ(static_cast<int8_t>(bytes[0]), -127);
  EXPECT_EQ(static_cast<int8_t>(bytes[1]), 50);
  EXPECT_EQ(*reinterpret_cast<const float*>(bytes.data() + eight.scales_begin()), 2.0F);
}

TEST(Pack, ZerosConstantsAndExtremes_ComeBack) {
  for (const int bits : {8, 4}) {
    const PackedLayout layout{bits, 1, 32, bits == 4 ? 32 : 0};
    for (const float value : {0.0F, 3.0F, -1.5F, 1e-42F, 3e38F}) {
      const at::Tensor weights = at::zeros({1, 32}).fill_(value);
      const auto [packed, error] = pack(layout, weights, false, "w");
      const at::Tensor back = unpacked(kPackedScalar, layout, packed);
      EXPECT_LE((back - weights).abs().max().item<double>(), std::fabs(value) / 250 + 1e-36)
          << bits << " " << value;
    }
    const at::Tensor wide = at::zeros({1, 32});
    wide[0][0] = -3e38F;
    wide[0][31] = 3e38F;
    const at::Tensor back = unpacked(kPackedScalar, layout, pack(layout, wide, false, "w").first);
    EXPECT_TRUE(back.isfinite().all().item<bool>());
    EXPECT_LE((back - wide).abs().max().item<double>(), 3e38 / 15 * 1.1);
  }
}

TEST(Pack, NotFinite_NamesTheWeight) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const at::Tensor weights = at::zeros({4, 64});
    weights[2][9] = value;
    try {
      pack({4, 4, 64, 64}, weights, false, "layer.weight");
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("layer.weight"), std::string::npos);
      EXPECT_NE(error.detail().hint.find("skip"), std::string::npos);
    }
  }
}

TEST(Kernels, Unpack_IsTheSameEverywhere) {
  for (const PackCase& of : pack_cases()) {
    const at::Tensor packed = pack(of.layout, weights_of(of), false, "w").first;
    const at::Tensor expected = unpacked(kPackedScalar, of.layout, packed);
    for (const PackedKernels* const with : kernels()) {
      // Fused multiply-add rounds once; the plain kernel rounds twice.
      const at::Tensor off = (unpacked(*with, of.layout, packed) - expected).abs();
      EXPECT_LE(off.max().item<double>(), 1e-6 * expected.abs().max().item<double>()) << with->name;
    }
    const at::Tensor by_operations = unpack_by_operations(of.layout, packed);
    EXPECT_TRUE(by_operations.allclose(expected, 1e-6, 1e-7)) << of.layout.bits;
  }
}

TEST(Kernels, Multiply_IsWithinRoundingOfDouble) {
  for (const PackCase& of : pack_cases()) {
    const PackedLayout& layout = of.layout;
    const at::Tensor packed = pack(layout, weights_of(of), false, "w").first;
    const at::Tensor weights = unpacked(kPackedScalar, layout, packed).to(at::kDouble);
    for (const int64_t count : {1, 2, 3, 4, 5, 9}) {
      const at::Tensor x = at::randn({count, layout.columns});
      const at::Tensor sums =
          layout.bits == 4 ? x.view({count, layout.groups(), layout.group}).sum(-1) : at::Tensor();
      const at::Tensor expected = x.to(at::kDouble).mm(weights.t());
      // For a sum of n products in float: n * eps * sum of |x||w|; a zero adds that of its scale.
      const at::Tensor magnitude = x.to(at::kDouble).abs().mm((weights.abs() + 16 * of.scale).t());
      for (const PackedKernels* const with : kernels()) {
        const at::Tensor y = at::zeros({count, layout.rows});
        // In two parts, as threads divide the work.
        const int64_t half = layout.rows / 2;
        for (const auto& [begin, end] : {std::pair{int64_t{0}, half}, {half, layout.rows}}) {
          with->multiply(layout, packed.const_data_ptr<uint8_t>(), begin, end,
                         x.const_data_ptr<float>(),
                         sums.defined() ? sums.const_data_ptr<float>() : nullptr, count,
                         y.mutable_data_ptr<float>(), layout.rows);
        }
        const double bound = static_cast<double>(layout.columns) * 0x1p-23;
        EXPECT_TRUE((y - expected).abs().le(bound * magnitude).all().item<bool>())
            << with->name << " " << layout.bits << " bits, " << count << " of " << layout.columns;
      }
    }
  }
}

TEST(PackedWeight, FewAndManyRows_AnyTypeAndShape_AreTheProductWithItsValues) {
  const PackedLayout layout{4, 40, 64, 32};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const bool transposed : {false, true}) {
      const PackedWeight weight(layout, transposed, type);
      const at::Tensor matrix = at::randn({40, 64});
      const at::Tensor packed =
          pack(layout, transposed ? matrix.t() : matrix, transposed, "w").first;
      const void* const memory = packed.const_data_ptr();
      const at::Tensor values = weight.unpack(memory, at::kCPU);
      EXPECT_EQ(values.scalar_type(), type);
      EXPECT_TRUE(values.is_contiguous());
      const at::Tensor turned = (transposed ? values.t() : values).to(at::kFloat);
      const at::Tensor bias = at::randn({40}).to(type);
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {64}, {1, 64}, {2, 3, 64}, {8, 64}, {9, 64}, {3, 20, 64}, {0, 64}}) {
        const at::Tensor x = at::randn(sizes).to(type);
        const at::Tensor y = weight.multiply(x, bias, memory, at::kCPU);
        EXPECT_EQ(y.scalar_type(), type);
        const at::Tensor expected = x.to(at::kFloat).matmul(turned.t()) + bias.to(at::kFloat);
        ASSERT_EQ(y.sizes(), expected.sizes());
        const double relative = type == at::kFloat || type == at::kDouble ? 1e-4
                                : type == at::kHalf                       ? 0.01
                                                                          : 0.05;
        EXPECT_TRUE(y.to(at::kFloat).allclose(expected, relative, 16 * relative)) << type;
      }
    }
  }
}

}  // namespace
}  // namespace coupler::quantization
