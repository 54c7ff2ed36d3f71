// What of a value must be known to receive it: how many tensors it is, their types and shapes. It
// travels as a header of one fixed size ahead of the first value of that form. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler {

struct TensorForm {
  at::ScalarType type = at::kFloat;
  bool wants_gradient = false;  // its receiver sends one back
  std::vector<int64_t> sizes;
  bool operator==(const TensorForm&) const = default;
};
using Form = std::vector<TensorForm>;

constexpr int64_t kMostTensors = 16, kMostDimensions = 8;
constexpr int64_t kHeaderNumbers = 1 + kMostTensors * (3 + kMostDimensions);

Form form_of(const std::vector<at::Tensor>& values);
std::string text_of(const Form& form);  // "[Float [2, 3] with gradient, Long [2]]"

// A tensor of kHeaderNumbers int64. Throws Error(kUnsupported) where there is more than fits, or a
// type that cannot travel.
at::Tensor header_of(const Form& form);
// Throws Error(kMismatch) where the numbers are no header.
Form form_in(const at::Tensor& header);

}  // namespace coupler
