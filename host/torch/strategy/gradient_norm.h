// The arithmetic of gradient clipping that all strategies share. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "strategy/model.h"

namespace coupler {

double sum_of_squares(const std::vector<at::Tensor>& gradients);

// Scales the gradients by max_norm / norm if that is below 1.
void scale_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm);

// Throws the Error for a norm that is not finite. parameter: the first with a gradient that is not
// finite, an index into model.parameters; out of range if every element is finite.
[[noreturn]] void throw_not_finite(double norm, int64_t parameter, const Model& model);

}  // namespace coupler
