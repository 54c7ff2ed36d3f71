// Form: what a rank must know to receive a value: how many tensors it has, their types and shapes.
// It is sent as a fixed-size header ahead of the first value of that form. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler {

struct TensorForm {
  at::ScalarType type = at::kFloat;
  bool wants_gradient = false;  // the receiver sends one back
  std::vector<int64_t> sizes;
  bool operator==(const TensorForm&) const = default;
};
using Form = std::vector<TensorForm>;

constexpr int64_t kMostTensors = 16, kMostDimensions = 8;
constexpr int64_t kHeaderNumbers = 1 + kMostTensors * (3 + kMostDimensions);

Form form_of(const std::vector<at::Tensor>& values);
std::string text_of(const Form& form);  // "[Float [2, 3] with gradient, Long [2]]"

// A tensor of kHeaderNumbers int64. Throws Error(kUnsupported) if the form does not fit or contains
// a type that cannot be sent.
at::Tensor header_of(const Form& form);
// Throws Error(kMismatch) if the numbers are not a valid header.
Form form_in(const at::Tensor& header);

}  // namespace coupler
