// The arithmetic of gradient clipping that all strategies share. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "strategy/model.h"

namespace coupler {

double sum_of_squares(const std::vector<at::Tensor>& gradients);

// Scales the gradients by max_norm / norm, where that is below 1.
void scale_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm);

// Throws the Error for a norm that is not finite; parameter: the first one at fault, an index into
// model.parameters.
[[noreturn]] void throw_not_finite(double norm, int64_t parameter, const Model& model);

}  // namespace coupler
