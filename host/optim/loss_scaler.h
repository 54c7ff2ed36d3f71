// LossScaler: the dynamic loss scaling of fp16 training. Used by the thread that trains.
//
// Small gradients would be zero in fp16, so the loss is multiplied by a large scale and gradients
// are divided by it before anything looks at them. Where a gradient is infinite or NaN on any rank
// the step is skipped on all and the scale falls; after enough steps in a row without that it
// grows. The rule and the defaults are those of torch's GradScaler.
//
// What torch's does once an optimizer is done here once a model, and a change of the scale reaches
// gradients that still carry the old one: several models, optimizers that share one, and losses
// that reach several need no order of calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/strategy.h"

namespace coupler {

class LossScaler {
 public:
  // What a checkpoint holds.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;  // without overflow since the scale changed
  };

  LossScaler(const TrainingConfig& config, std::shared_ptr<Communicator> comm);

  // A model whose gradients are to be unscaled.
  void add(const std::shared_ptr<Strategy>& model);

  // The loss that backward is to run on. expected: the models that it reaches, where that is known.
  at::Tensor scale_loss(const at::Tensor& loss, const std::vector<Strategy*>& expected);

  // Unscales the gradients of these models, unless that is done; true where one of them has an
  // infinite or NaN gradient on any rank. Collective.
  bool unscale(const std::vector<Strategy*>& models);
  // An optimizer of these models has stepped, or skipped its step, after unscale: moves the scale.
  void update(const std::vector<Strategy*>& models);
  // Gradients of these models were dropped, some or all.
  void gradients_dropped(const std::vector<Strategy*>& models);

  double scale() const { return scale_; }
  State state() const { return {scale_, good_steps_}; }
  // Throws Error where the scale is not finite and above 0, or good_steps negative.
  void load_state(const State& state);

 private:
  struct Entry {
    std::weak_ptr<Strategy> model;
    const Strategy* key = nullptr;
    bool unscaled = false;
    bool overflow = false;  // found by unscaling
    bool counted = false;   // by update
    bool done = false;      // the next backward begins anew: an optimizer stepped or dropped
  };
  std::vector<Entry*> entries_of(const std::vector<Strategy*>& models);
  void set_scale(double scale);
  void rescale_pending(double factor);

  const double growth_factor_, backoff_factor_;
  const int64_t growth_interval_;
  std::shared_ptr<Communicator> comm_;
  std::vector<Entry> entries_;
  double scale_;
  int64_t good_steps_ = 0;
  bool warned_ = false;
};

}  // namespace coupler
