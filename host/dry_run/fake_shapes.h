// Results of operations that LibTorch has no meta kernel for, or none that gives what the CPU's
// kernel would. Pure functions of geometry: the tensors given are on meta, and so are the results.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace coupler {

using ShapeFunction = std::vector<c10::IValue> (*)(const std::vector<c10::IValue>& arguments);

// By the operator's name without overload ("aten::native_layer_norm"); null where there is none.
ShapeFunction shape_function(const std::string& name);

// Whether the sizes of its results depend on values, which fake tensors do not have.
bool needs_values(const std::string& name);

}  // namespace coupler
