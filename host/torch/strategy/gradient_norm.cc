#include "strategy/gradient_norm.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "residency/in_use.h"

namespace coupler {

double sum_of_squares(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  in_bunches(gradients, [&](at::TensorList bunch) {
    std::vector<at::Tensor> norms = at::_foreach_norm(bunch);
    // On a device, reading the norms one by one would wait for each.
    if (!norms[0].is_cpu()) {
      for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
      norms = at::stack(norms).cpu().unbind();
    }
    for (const at::Tensor& norm : norms) {
      const double value = norm.item<double>();
      sum += value * value;
    }
  });
  return sum;
}

void scale_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return;
  in_bunches(gradients, [&](at::TensorList bunch) { at::_foreach_mul_(bunch, factor); });
}

void throw_not_finite(double norm, int64_t parameter, const Model& model) {
  const bool known = parameter >= 0 && parameter < static_cast<int64_t>(model.parameters.size());
  // The squares of large finite gradients may overflow, too.
  const std::string where =
      known ? fmt::format("the gradient of parameter '{}' has infinite or NaN elements",
                          model.parameters[static_cast<size_t>(parameter)].name)
            : "the sum of squares overflows, although every element is finite";
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("clip_grad_norm: the norm of the gradients is {}: {}", norm, where),
              {.subject = known ? model.parameters[static_cast<size_t>(parameter)].name : "",
               .hint = "check the loss and the inputs of this step; a lower learning rate or "
                       "removing bad samples usually helps"});
}

}  // namespace coupler
