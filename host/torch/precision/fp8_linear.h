// Linear layers in fp8. On a thread that enabled it
// (tensors::set_fp8_linear), at::linear and the products that
// torch::nn::Linear consists of use LibTorch's scaled matmul, forward and backward, whichever
// module calls them. Unaffected are layers whose sizes are not multiples of 16, as fp8 matrix units
// require, types other than fp32, bf16 and fp16, and other operations. [any-thread]
//
// Each tensor has one scale, computed from its current values ("tensorwise, dynamic" in torchao):
// the largest power of two that keeps its largest element within the type's range, so that scaling
// itself is exact. Inputs and weights are e4m3 (3 bits of mantissa, up to 448). The bias, the sums
// and the result are not fp8. Second-order gradients are not defined.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

namespace coupler::precision {

// Why the device has no fp8 matrix units. Empty if it has them or if that is unknown (CUDA devices
// are tested by trying).
std::string why_no_fp8_units(c10::DeviceType device);

}  // namespace coupler::precision
