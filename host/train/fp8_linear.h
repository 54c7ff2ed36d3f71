// Linear layers in fp8: on a thread that asked for it at::linear, and the products that
// torch::nn::Linear is made of, multiply through LibTorch's scaled matmul, forward and backward,
// whatever module calls them. Layers whose sizes fp8 matrix
// units do not take (they want multiples of 16), other types than fp32, bf16 and fp16, and other
// operations compute as they would without. [any-thread]
//
// One scale a tensor, computed from the tensor at hand ("tensorwise, dynamic" in torchao): the
// largest power of two that keeps its largest element within the type's range, so that scaling
// itself is exact. Inputs and weights are e4m3 (3 bits of mantissa, to 448). The bias, the sums and
// the result are not fp8. The gradient's gradient is not defined.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace coupler {

// From now on the calling thread's linear layers multiply in fp8, gradients in this type (e5m2 or
// e4m3fn), and give bf16; none: they are as LibTorch has them. Returns what held before, to be set
// again.
std::optional<c10::ScalarType> set_fp8_linear(std::optional<c10::ScalarType> gradients);

// Why the device has no fp8 matrix units; empty: it has, or none is known to be missing (CUDA
// devices are asked by trying).
std::string why_no_fp8_units(c10::DeviceType device);

}  // namespace coupler
