#include "strategy/lone_gradients.h"

#include <algorithm>

namespace coupler {

LoneGradients::LoneGradients(FlatParameters& flat, const GradientUsers& users)
    : flat_(flat), users_(users), used_(flat.slots().size()) {}

void LoneGradients::install() {
  for (size_t i = 0; i < flat_.slots().size(); ++i) {
    hooks_.add(flat_.slots()[i].parameter, weak_from_this(), i);
  }
}

void LoneGradients::on_gradient(size_t slot) {
  if (!offers_ || !users_.any()) return;
  if (!active_) {
    active_ = true;
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    users_.tell_backward_begins();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->active_ = false;
    });
  }
  if (used_[slot] != 0) throw_second_gradient(flat_.slots()[slot].name);
  users_.offer(flat_, slot, slot + 1);
  used_[slot] = flat_.slots()[slot].parameter.grad().defined() ? 0 : 1;
}

}  // namespace coupler
