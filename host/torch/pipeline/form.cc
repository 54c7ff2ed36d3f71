#include "pipeline/form.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tensors/tensor_ops.h"

namespace coupler {

Form form_of(const std::vector<at::Tensor>& values) {
  Form form;
  for (const at::Tensor& value : values) {
    form.push_back({value.scalar_type(), value.requires_grad(), value.sizes().vec()});
  }
  return form;
}

std::string text_of(const Form& form) {
  std::vector<std::string> parts;
  for (const TensorForm& tensor : form) {
    parts.push_back(fmt::format("{} [{}]{}", c10::toString(tensor.type),
                                fmt::join(tensor.sizes, ", "),
                                tensor.wants_gradient ? " with gradient" : ""));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

at::Tensor header_of(const Form& form) {
  if (form.empty() || static_cast<int64_t>(form.size()) > kMostTensors) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("a stage passes on {} tensors; it can pass 1 to {}", form.size(), kMostTensors),
        {.hint = "cut where fewer tensors are passed on, or pack them"});
  }
  at::Tensor header = at::zeros({kHeaderNumbers}, at::kLong);
  int64_t* next = header.mutable_data_ptr<int64_t>();
  *next++ = static_cast<int64_t>(form.size());
  for (const TensorForm& tensor : form) {
    to_db_dtype(tensor.type);  // throws
    const auto dimensions = static_cast<int64_t>(tensor.sizes.size());
    if (dimensions > kMostDimensions) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("a stage passes on a tensor of {} dimensions; it can have at most {}",
                      dimensions, kMostDimensions),
          {.hint = "flatten it in the layer before the cut and restore its shape after it"});
    }
    *next++ = static_cast<int64_t>(tensor.type);
    *next++ = tensor.wants_gradient ? 1 : 0;
    *next++ = dimensions;
    for (const int64_t size : tensor.sizes) *next++ = size;
    next += kMostDimensions - dimensions;
  }
  return header;
}

Form form_in(const at::Tensor& header) {
  const int64_t* next = header.const_data_ptr<int64_t>();
  const auto require = [](bool holds) {
    if (holds) return;
    throw Error(ErrorCode::kMismatch, "another stage sent an invalid header ahead of its tensors",
                {.hint = "run the same build of Coupler on every rank"});
  };
  const int64_t tensors = *next++;
  require(tensors >= 1 && tensors <= kMostTensors);
  Form form(static_cast<size_t>(tensors));
  for (TensorForm& tensor : form) {
    const int64_t type = *next++, gradient = *next++, dimensions = *next++;
    require(type >= 0 && type < static_cast<int64_t>(at::ScalarType::NumOptions) &&
            (gradient == 0 || gradient == 1) && dimensions >= 0 && dimensions <= kMostDimensions);
    tensor.type = static_cast<at::ScalarType>(type);
    tensor.wants_gradient = gradient == 1;
    tensor.sizes.assign(next, next + dimensions);
    for (const int64_t size : tensor.sizes) require(size >= 0);
    next += kMostDimensions;
  }
  return form;
}

}  // namespace coupler
