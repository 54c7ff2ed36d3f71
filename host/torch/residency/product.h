// The operations that linear layers consist of. Plain functions, any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>

#include <optional>

namespace coupler::residency {

// x [..., in] times a matrix, plus bias [out] if it is defined: [..., out].
struct Product {
  at::Tensor x, matrix, bias;
  bool out_in = false;  // whether the matrix is given as [out, in], and not as [in, out]
};

// Unset if the operation, whose arguments are on the stack, is another (of these: aten::linear,
// matmul, mm, addmm without factors). The second operand is taken for the matrix: check what it is.
std::optional<Product> product_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether operations on this kind of device are converted by autocast now: unlike
// at::autocast::is_autocast_enabled, false where code computes outside of it.
bool is_autocast_on(c10::DeviceType device);

}  // namespace coupler::residency
