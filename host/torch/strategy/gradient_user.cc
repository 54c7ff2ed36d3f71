#include "strategy/gradient_user.h"

#include <algorithm>

namespace coupler {

bool GradientUsers::any() const {
  return std::any_of(users_.begin(), users_.end(),
                     [](const auto& user) { return !user.expired(); });
}

void GradientUsers::tell_backward_begins() const {
  for (const auto& user : users_) {
    if (const auto alive = user.lock()) alive->backward_begins();
  }
}

void GradientUsers::offer(FlatParameters& flat, size_t first, size_t end) const {
  for (const auto& user : users_) {
    if (const auto alive = user.lock()) alive->take(flat, first, end);
  }
  for (size_t i = first; i < end; ++i) {
    const at::Tensor& parameter = flat.slots()[i].parameter;
    if (!parameter.grad().defined()) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace coupler
