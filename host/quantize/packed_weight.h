// PackedWeight: a linear layer's weight in PackedLayout as the intercept takes it (residency's
// Packed). On the CPU few rows of activations go through the kernels of kernels.h; many, and other
// devices, through products with weights that are unpacked a part at a time. Immutable,
// [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/quantize_options.h>

#include <utility>

#include "quantize/pack.h"
#include "quantize/packed_layout.h"
#include "residency/packed.h"

namespace coupler {

class PackedWeight : public Packed {
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

// Packs a matrix on the CPU of any floating type, [rows, columns] or, transposed, [columns, rows];
// the bytes are a tensor of uint8. Threads as at::parallel_for has. Throws
// Error(kInvalidArgument) naming the weight where it holds what is not finite.
std::pair<at::Tensor, PackError> pack(const PackedLayout& layout, const at::Tensor& weight,
                                      bool transposed, const std::string& name);

// The matrix [rows, columns] of float, from packed bytes on any device and by LibTorch's own
// operations: what the kernels do, where they do not run.
at::Tensor unpack_by_operations(const PackedLayout& layout, const at::Tensor& packed);

}  // namespace coupler
