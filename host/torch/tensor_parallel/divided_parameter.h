// A divided parameter's parts and the whole. Plain functions, one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

#include "sharding/tensor_plan.h"
#include "strategy/model.h"
#include "strategy/strategy.h"

namespace coupler::tensor_parallel {

// How a parameter of these sizes is divided along a dimension. Throws Error(kConfig) naming it and
// the plan's line if the dimension does not divide.
strategy::ParameterDivision division_of(const std::string& name, at::IntArrayRef sizes, int64_t dim,
                                        const sharding::PlannedLayers& line, int ranks, int rank);

// A rank's part of a whole parameter: a copy.
at::Tensor part_of(const at::Tensor& whole, const strategy::ParameterDivision& division);

// The whole tensor of these parts: those of a parameter, or of its gradient. Undefined if `part`
// is, on every rank. Returns the part itself if the parameter is not divided. Collective over the
// tensor group.
at::Tensor whole_of(const strategy::Model& model, size_t parameter, const at::Tensor& part);

// strategy.gradient_norm(which) over the tensor group, too. Collective.
double gradient_norm(strategy::Strategy& strategy, const strategy::GradientNorm& which);

}  // namespace coupler::tensor_parallel
