// A divided parameter's parts and the whole. Plain functions, one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "strategy/model.h"
#include "strategy/strategy.h"
#include "tensor_parallel/exchange.h"

namespace coupler::tensor_parallel {

// A rank's part of a whole parameter: a copy.
at::Tensor part_of(const at::Tensor& whole, const strategy::ParameterDivision& division);

// The same from a chunk of the whole, whose first element is number `begin` there: copies what the
// chunk has of the rank's part. Both are contiguous on the CPU.
void copy_from_chunk(const at::Tensor& chunk, int64_t begin,
                     const strategy::ParameterDivision& division, const at::Tensor& part);

// Makes `own` the value of a parameter, which may be on meta: this rank's part if there is a
// division, over this group.
void set_own_value(strategy::ModelParameter& parameter, const at::Tensor& own,
                   std::optional<strategy::ParameterDivision> division, const Group& group);

// Gives a parameter the value that rank 0 of the group has, or its part of that. whole: this rank's
// own value, which is overwritten; the parameter may be on meta. Collective.
void take_value(strategy::ModelParameter& parameter, const at::Tensor& whole,
                std::optional<strategy::ParameterDivision> division, const Group& group);

// The whole tensor of these parts: those of a parameter, or of its gradient. Undefined if `part`
// is, on every rank. Returns the part itself if the parameter is not divided. Collective over the
// ranks that have its parts.
at::Tensor whole_of(const strategy::Model& model, size_t parameter, const at::Tensor& part);

// The whole value of a parameter that take_value made a part of, wherever the model is; of another,
// a copy of its own value. Collective over the ranks that have its parts.
at::Tensor whole_value(const at::Tensor& parameter);

// strategy.gradient_norm(which) over the ranks that have other parts, too. Collective.
double gradient_norm(strategy::Strategy& strategy, const strategy::GradientNorm& which);

}  // namespace coupler::tensor_parallel
