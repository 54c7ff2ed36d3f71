// Accumulation: which backward of an accumulation window averages gradients, and by what its loss
// and the average are multiplied. A window of a model is its accumulate() scopes since the last
// that synchronised; models have their own, so that two may be trained in turn. Used by the thread
// that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "config/config.h"
#include "optim/step_state.h"
#include "strategy/strategy.h"

namespace coupler {

// The factors of one backward: of its loss, and of the average and all it is added to.
struct BackwardScale {
  double loss = 1;
  double average = 1;
};

class Accumulation {
 public:
  explicit Accumulation(const TrainingConfig& config) : config_(config) {}

  // A scope of accumulate(). last: the loader has no further batch. Throws Error(kUsage) where the
  // models have accumulated different numbers of batches.
  void begin(std::vector<Strategy*> models, bool last);
  void end();
  // Whether some model has accumulated gradients that no step has used.
  bool pending() const;
  // Forgets every window.
  void clear();

  // The models of the scope under way.
  const std::vector<Strategy*>& scope() const { return scope_; }
  const StepState& loop() const { return loop_; }

  // For the next backward, of a mean loss (no weight; that of a window is the mean of its batches)
  // or of a sum over `weight` things (that of a window is divided by all weights of all ranks).
  // sum_over_ranks is called once where a weighted window ends. Throws Error(kUsage) where a window
  // would hold both, and where a second weighted backward follows the one that averaged.
  BackwardScale scale(std::optional<double> weight, int world,
                      const std::function<double(double)>& sum_over_ranks);
  void ran_backward() { loop_.backward_of_only = scope_.size() == 1; }

 private:
  struct Window {
    int64_t batches = 0;
    double weight = 0;      // of this rank's losses
    bool plain = false;     // a backward without weight was part of it,
    bool weighted = false;  // or one with
    bool averaged = false;  // a backward has synchronised
  };

  BackwardScale plain_scale(Window& window) const;

  const TrainingConfig& config_;
  std::vector<Strategy*> scope_;
  std::map<const Strategy*, Window> windows_;
  StepState loop_;
  uint64_t scopes_ = 0;  // begun
};

}  // namespace coupler
