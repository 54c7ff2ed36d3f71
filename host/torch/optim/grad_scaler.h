// GradScaler: the dynamic loss scaling of fp16 training. Used by the training thread.
//
// Small gradients would be zero in fp16, so the loss is multiplied by a large scale, and gradients
// are divided by it before they are used. If a gradient is infinite or NaN on any rank, all ranks
// skip the step and the scale falls. After enough consecutive steps without that, it grows. The
// rule and the defaults are those of torch's GradScaler.
//
// torch's GradScaler works per optimizer; this works per model, and a change of the scale also
// rescales gradients that still carry the old one. So there is no required order of calls for
// several models, for optimizers that share a model, or for losses that reach several models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/model_state.h"

namespace coupler::optim {

class GradScaler {
 public:
  // What a checkpoint stores.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;  // without overflow since the scale changed
  };

  GradScaler(const config::TrainingConfig& config, std::shared_ptr<comm::Communicator> comm);

  // A model whose gradients are to be unscaled.
  void add(const std::shared_ptr<strategy::ModelState>& model);

  // The loss to run backward on. expected: the models that it is known to reach.
  at::Tensor scale_loss(const at::Tensor& loss, const std::vector<strategy::ModelState*>& expected);

  // Unscales the gradients of these models, unless that was done. Returns whether one of them has
  // an infinite or NaN gradient on any rank. Collective.
  bool unscale(const std::vector<strategy::ModelState*>& models);
  // Adjusts the scale. Call after unscale, when an optimizer of these models stepped or skipped.
  void update(const std::vector<strategy::ModelState*>& models);
  // Some or all gradients of these models were dropped.
  void gradients_dropped(const std::vector<strategy::ModelState*>& models);

  double scale() const { return scale_; }
  State state() const { return {scale_, good_steps_}; }
  // Throws Error if the scale is not finite and above 0, or if good_steps is negative.
  void load_state(const State& state);

 private:
  struct Entry {
    std::weak_ptr<strategy::ModelState> model;
    const strategy::ModelState* key = nullptr;
    bool unscaled = false;
    bool overflow = false;  // found by unscaling
    bool counted = false;   // by update
    bool done = false;      // stepped or dropped: the next backward starts afresh
  };
  std::vector<Entry*> entries_of(const std::vector<strategy::ModelState*>& models);
  void set_scale(double scale);

  const double growth_factor_, backoff_factor_;
  const int64_t growth_interval_;
  std::shared_ptr<comm::Communicator> comm_;
  std::vector<Entry> entries_;
  double scale_;
  int64_t good_steps_ = 0;
  bool warned_ = false;
};

}  // namespace coupler::optim
