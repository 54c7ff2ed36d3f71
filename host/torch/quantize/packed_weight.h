// PackedWeight: a linear layer's weight in PackedLayout, in the form the intercept uses
// (residency's Packed). On the CPU, few rows of activations use the kernels of kernels.h; many rows
// use products with weights unpacked a part at a time; other devices unpack the whole weight.
// Immutable, [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/big_model.h>

#include <utility>

#include "quantize/pack.h"
#include "residency/packed.h"

namespace coupler::quantization {

class PackedWeight : public residency::PackedFormat {
 public:
  PackedWeight(PackedLayout layout, bool transposed, at::ScalarType type)
      : layout_(layout), transposed_(transposed), type_(type) {}

  const PackedLayout& layout() const { return layout_; }
  size_t bytes() const override { return layout_.bytes(); }
  bool transposed() const override { return transposed_; }
  at::Tensor unpack(const void* memory, c10::Device device) const override;
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias, const void* memory,
                      c10::Device device) const override;

 private:
  at::Tensor multiply_few(const at::Tensor& x, const uint8_t* packed) const;
  at::Tensor multiply_many(const at::Tensor& x, const uint8_t* packed) const;

  PackedLayout layout_;
  bool transposed_;
  at::ScalarType type_;
};

// Packs a floating-point matrix on the CPU, [rows, columns] or, transposed, [columns, rows], into a
// tensor of uint8. Uses at::parallel_for. Throws Error(kInvalidArgument) naming the weight if it
// has non-finite values.
std::pair<at::Tensor, PackError> pack(const PackedLayout& layout, const at::Tensor& weight,
                                      bool transposed, const std::string& name);

// Unpacks to a float matrix [rows, columns] on any device with LibTorch's own operations, for
// devices without the kernels.
at::Tensor unpack_by_operations(const PackedLayout& layout, const at::Tensor& packed);

}  // namespace coupler::quantization
