#include "strategy/gradient_sync.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace coupler::strategy {

bool GradientSync::has_consumers() const {
  return std::any_of(consumers_.begin(), consumers_.end(),
                     [](const auto& consumer) { return !consumer.expired(); });
}

void GradientSync::notify_backward_begin() const {
  for (const auto& consumer : consumers_) {
    if (const auto alive = consumer.lock()) alive->on_backward_begin();
  }
}

void GradientSync::notify_gradients_ready(FlatParameters& flat, size_t first, size_t end) const {
  for (const auto& consumer : consumers_) {
    if (const auto alive = consumer.lock()) alive->on_gradients_ready(flat, first, end);
  }
  for (size_t i = first; i < end; ++i) {
    const at::Tensor& parameter = flat.slots()[i].parameter;
    if (!parameter.grad().defined()) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

LocalGradients::LocalGradients(FlatParameters& flat) : flat_(flat), used_(flat.slots().size()) {}

void LocalGradients::add_consumer(const std::shared_ptr<GradientConsumer>& consumer) {
  GradientSync::add_consumer(consumer);
  if (hooks_ != nullptr) return;
  hooks_ = std::make_unique<GradientHooks>();
  for (size_t i = 0; i < flat_.slots().size(); ++i) {
    hooks_->add(flat_.slots()[i].parameter, weak_from_this(), i);
  }
}

// With a factor, gradients are final only after backward, so no consumer gets them in it.
void LocalGradients::on_gradient(size_t slot) {
  if (!sync() || factor_ != 1 || !has_consumers()) return;
  if (!active_) {
    active_ = true;
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    notify_backward_begin();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->active_ = false;
    });
  }
  if (used_[slot] != 0) throw_second_gradient(flat_.slots()[slot].name);
  notify_gradients_ready(flat_, slot, slot + 1);
  used_[slot] = flat_.slots()[slot].parameter.grad().defined() ? 0 : 1;
}

void LocalGradients::end_backward(bool takes_part) {
  if (takes_part && sync() && factor_ != 1) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& gradient : flat_.gradients()) gradient.mul_(factor_);
  }
  factor_ = 1;
}

}  // namespace coupler::strategy
