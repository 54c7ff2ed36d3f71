// Result shapes of operations for which LibTorch has no meta kernel, or one that differs from the
// CPU kernel. Pure functions of geometry: arguments and results are on meta.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace coupler::dry_run {

using ShapeFunction = std::vector<c10::IValue> (*)(const std::vector<c10::IValue>& arguments);

// By the operator's name without overload ("aten::native_layer_norm"); null if unknown.
ShapeFunction shape_function(const std::string& name);

// Whether the sizes of the operator's results depend on values, which fake tensors do not have.
bool needs_values(const std::string& name);

}  // namespace coupler::dry_run
