// Finds and replaces tensors among boxed arguments or results, single or in lists.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "empty_weights/recipe.h"

namespace coupler {

// Calls `visit` for each defined tensor, in order.
void for_each_tensor(const std::vector<c10::IValue>& values,
                     const std::function<void(Position, const at::Tensor&)>& visit);

// Calls `visit` with every defined tensor in one value, lists of lists included.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

at::Tensor get(const std::vector<c10::IValue>& values, Position position);

// Copies a list before changing it, since copies of an IValue share their list.
void put(std::vector<c10::IValue>& values, Position position, const at::Tensor& tensor);

}  // namespace coupler
