#include "tensors/tensor_text.h"

#include <fmt/ranges.h>

namespace coupler::tensors {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

std::string text_with_device(const at::Tensor& tensor) {
  if (!tensor.defined()) return text_of(tensor);
  return fmt::format("{} on {}", text_of(tensor), tensor.device().str());
}

}  // namespace coupler::tensors
