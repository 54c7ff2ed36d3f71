// Accumulation: which backward of an accumulation window averages gradients, and the factors of its
// loss and of the average. A model's window is its accumulate() scopes since the last one that
// synchronized. Each model has its own window, so that two may be trained in turn. Used by the
// training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "config/config.h"
#include "optim/optimizer.h"
#include "strategy/strategy.h"

namespace coupler {

// The factors of one backward: for its loss, and for the average and what that is added to.
struct BackwardScale {
  double loss = 1;
  double average = 1;
};

class Accumulation {
 public:
  explicit Accumulation(const config::TrainingConfig& config) : config_(config) {}

  // A scope of accumulate(). last: the loader has no further batch. Throws Error(kUsage) if the
  // models have accumulated different numbers of batches.
  void begin(std::vector<strategy::Strategy*> models, bool last);
  void end();
  // Whether some model has accumulated gradients that no step has used.
  bool pending() const;
  // Forgets every window.
  void clear();

  // The models of the current scope.
  const std::vector<strategy::Strategy*>& scope() const { return scope_; }
  const optim::StepState& loop() const { return loop_; }

  // The factors for the next backward. Without a weight its loss is a mean, and the window's loss
  // is the mean over its batches. With one its loss is a sum over `weight` items, and the window's
  // loss is divided by the sum of all ranks' weights. sum_over_ranks is called once, at the end of
  // a weighted window. Throws Error(kUsage) if a window would mix both kinds, and if a second
  // weighted backward follows the one that averaged.
  BackwardScale scale(std::optional<double> weight, int world_size,
                      const std::function<double(double)>& sum_over_ranks);
  // loss_factor: of its loss.
  void ran_backward(double loss_factor) {
    loop_.backward_of_only = scope_.size() == 1;
    loop_.loss_factor = loss_factor;
  }

 private:
  struct Window {
    int64_t batches = 0;
    double weight = 0;      // sum of this rank's weights
    bool plain = false;     // a backward without a weight was part of it
    bool weighted = false;  // one with a weight was part of it
    bool averaged = false;  // a backward has synchronized
  };

  BackwardScale plain_scale(Window& window) const;

  const config::TrainingConfig& config_;
  std::vector<strategy::Strategy*> scope_;
  std::map<const strategy::Strategy*, Window> windows_;
  optim::StepState loop_;
  uint64_t scopes_ = 0;  // number begun
};

}  // namespace coupler
