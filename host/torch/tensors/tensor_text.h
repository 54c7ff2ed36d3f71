// How messages show a tensor. Pure functions, [any-thread].
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace coupler::tensors {

// "Float [2, 3]", or "an undefined tensor".
std::string text_of(const at::Tensor& tensor);
// The same with its device: "Float [2, 3] on cuda:0".
std::string text_with_device(const at::Tensor& tensor);

}  // namespace coupler::tensors
