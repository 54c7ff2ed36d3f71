#include "empty_weights/arguments.h"

#include <ATen/core/List.h>

namespace coupler {

void for_each_tensor(const std::vector<c10::IValue>& values,
                     const std::function<void(Position, const at::Tensor&)>& visit) {
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit({i, -1}, value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto elements = value.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        if (elements[j].isTensor() && elements[j].toTensor().defined())
          visit({i, static_cast<int>(j)}, elements[j].toTensor());
      }
    }
  }
}

at::Tensor get(const std::vector<c10::IValue>& values, Position position) {
  const c10::IValue& value = values.at(position.index);
  if (position.element < 0) return value.toTensor();
  return value.toListRef()[static_cast<size_t>(position.element)].toTensor();
}

void put(std::vector<c10::IValue>& values, Position position, const at::Tensor& tensor) {
  c10::IValue& value = values.at(position.index);
  if (position.element < 0) {
    value = tensor;
    return;
  }
  const auto list = value.toList().copy();
  list.set(static_cast<size_t>(position.element), tensor);
  value = list;
}

}  // namespace coupler
