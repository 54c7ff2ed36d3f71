#include "dry_run/describe.h"

#include "tensors/tensor_ops.h"

namespace coupler {

LoggedModel describe_for_estimate(const Model& model) {
  LoggedModel result{.name = model.name};
  for (const ModelModule& module : model.modules) {
    result.modules.push_back({module.name, module.type, module.parent});
  }
  for (const ModelParameter& parameter : model.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    result.parameters.push_back({.name = parameter.name,
                                 .module = parameter.module,
                                 .sizes = {tensor.sizes().begin(), tensor.sizes().end()},
                                 .dtype = to_db_dtype(tensor.scalar_type()),
                                 .element_size = c10::elementSize(tensor.scalar_type()),
                                 .trainable = tensor.requires_grad(),
                                 .in_memory = !tensor.is_meta()});
  }
  return result;
}

}  // namespace coupler
