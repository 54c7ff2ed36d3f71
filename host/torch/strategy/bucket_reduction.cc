#include "strategy/bucket_reduction.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace coupler::strategy {
namespace {

// Rounds to nearest. bf16 has fp32's range and 8 bits of precision; fp16 has 11 bits and becomes
// infinite beyond 65504.
class ShortFloats final : public GradientCodec {
 public:
  explicit ShortFloats(at::ScalarType type) : type_(type) {}

  int64_t bytes(int64_t n) const override { return 2 * n; }
  bool needs_error_feedback() const override { return false; }

  void encode(const at::Tensor& values, at::Tensor into, at::Tensor residual) const override {
    at::Tensor encoded = into.view(type_);
    encoded.copy_(values);
    if (residual.defined()) at::sub_out(residual, values, encoded).nan_to_num_(0, 0, 0);
  }

  void decode(const at::Tensor& from, at::Tensor values, bool add) const override {
    const at::Tensor encoded = from.view(type_);
    if (!add) {
      values.copy_(encoded);
    } else if (!values.is_cpu()) {
      values.add_(encoded);
    } else {
      add_in_parts(encoded, values);
    }
  }

 private:
  // On the CPU, ATen widens the whole operand before adding, which writes and reads another
  // bucket's worth of memory. Small parts stay in the processor's cache.
  static void add_in_parts(const at::Tensor& encoded, const at::Tensor& values) {
    constexpr int64_t kPart = 1 << 16;
    const int64_t n = values.numel();
    const at::Tensor wide = at::empty({std::min(n, kPart)}, values.options());
    for (int64_t begin = 0; begin < n; begin += kPart) {
      const int64_t count = std::min(n - begin, kPart);
      const at::Tensor part = wide.narrow(0, 0, count);
      part.copy_(encoded.narrow(0, begin, count));
      values.narrow(0, begin, count).add_(part);
    }
  }

  const at::ScalarType type_;
};

// Each block is a scale (its largest absolute value / 127) and an integer of -127…127 per element.
// In memory: the scales of all blocks, then the integers. If a block has an element that is not
// finite, its scale is not finite.
class ScaledIntegers final : public GradientCodec {
 public:
  explicit ScaledIntegers(int64_t block) : block_(block) {}

  int64_t bytes(int64_t n) const override { return blocks(n) * kScaleBytes + n; }
  bool needs_error_feedback() const override { return true; }

  void encode(const at::Tensor& values, at::Tensor into, at::Tensor residual) const override {
    each_part(values, into,
              [&](int64_t begin, const at::Tensor& from, at::Tensor scales, at::Tensor integers) {
                at::Tensor largest = std::get<1>(at::aminmax(from.abs(), 1));
                scales.copy_(largest.div_(kMost));
                // For a block of zeros any divisor will do.
                const at::Tensor divisor =
                    at::where(scales == 0, at::ones_like(scales), scales).unsqueeze(1);
                at::Tensor rounded =
                    at::div(from, divisor).round_().clamp_(-kMost, kMost).nan_to_num_(0);
                integers.copy_(rounded);
                if (!residual.defined()) return;
                at::Tensor rest = residual.narrow(0, begin, from.numel()).view_as(from);
                at::sub_out(rest, from, rounded.mul_(scales.unsqueeze(1)));
                if (!at::isfinite(scales).all().item<bool>()) rest.nan_to_num_(0, 0, 0);
              });
  }

  void decode(const at::Tensor& from, at::Tensor values, bool add) const override {
    each_part(values, from,
              [&](int64_t, at::Tensor to, const at::Tensor& scales, const at::Tensor& integers) {
                // 0 times an infinite scale is NaN, so overflow stays visible.
                const at::Tensor wide = integers.to(at::kFloat);
                add ? to.addcmul_(wide, scales.unsqueeze(1))
                    : at::mul_out(to, wide, scales.unsqueeze(1));
              });
  }

 private:
  static constexpr int64_t kScaleBytes = 4;
  static constexpr double kMost = 127;

  int64_t blocks(int64_t n) const { return (n + block_ - 1) / block_; }

  // Visits the whole blocks as [blocks, block], then the rest as a shorter block: visit(begin,
  // values, scales, integers).
  template <class Visit>
  void each_part(const at::Tensor& values, const at::Tensor& bytes, const Visit& visit) const {
    const int64_t n = values.numel(), whole = n / block_, rest = n % block_;
    const at::Tensor scales = bytes.narrow(0, 0, blocks(n) * kScaleBytes).view(at::kFloat);
    const at::Tensor integers = bytes.narrow(0, blocks(n) * kScaleBytes, n).view(at::kChar);
    const auto part = [&](int64_t begin, int64_t count, int64_t length, int64_t first) {
      if (count == 0) return;
      visit(begin, values.narrow(0, begin, count * length).view({count, length}),
            scales.narrow(0, first, count),
            integers.narrow(0, begin, count * length).view({count, length}));
    };
    part(0, whole, block_, 0);
    part(whole * block_, rest > 0 ? 1 : 0, rest, whole);
  }

  const int64_t block_;
};

}  // namespace

std::shared_ptr<const GradientCodec> make_codec(const config::CommunicationConfig& config) {
  if (config.gradients == "bf16") return std::make_shared<ShortFloats>(at::kBFloat16);
  if (config.gradients == "fp16") return std::make_shared<ShortFloats>(at::kHalf);
  if (config.gradients == "int8") return std::make_shared<ScaledIntegers>(config.int8_block);
  return nullptr;
}

}  // namespace coupler::strategy
