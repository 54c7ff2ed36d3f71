#include "accelerator/accumulation.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace coupler {

void Accumulation::begin(std::vector<strategy::Strategy*> models, bool last) {
  int64_t held = 0;
  for (const strategy::Strategy* model : models) {
    const int64_t batches = windows_[model].batches;
    if (model != models[0] && batches != held) {
      fail_usage(fmt::format("accumulate: '{}' has accumulated {} batches, but '{}' has {}",
                             models[0]->model().name, held, model->model().name, batches),
                 model->model().name,
                 "always pass models to accumulate together, or always separately");
    }
    held = batches;
  }
  ++held;
  for (const strategy::Strategy* model : models) windows_[model].batches = held;
  scope_ = std::move(models);
  loop_ = {
      .sync = (last && config_.sync_with_dataloader) || held >= config_.gradient_accumulation_steps,
      .scope = ++scopes_,
      .first_of_window = held == 1,
      .backward_of_only = false};
  for (strategy::Strategy* model : scope_)
    model->gradient_sync().set_sync(loop_.sync || config_.sync_each_batch);
}

void Accumulation::end() {
  for (strategy::Strategy* model : scope_) {
    model->gradient_sync().set_sync(true);
    if (loop_.sync) windows_.erase(model);
  }
  scope_.clear();
  loop_ = {};
}

bool Accumulation::pending() const { return !windows_.empty(); }

void Accumulation::clear() {
  scope_.clear();
  windows_.clear();
  loop_ = {};
}

// Losses are divided by the number of batches a window should hold. If it ends with fewer, the
// factor of the average compensates.
BackwardScale Accumulation::plain_scale(Window& window) const {
  const auto steps = static_cast<double>(config_.gradient_accumulation_steps);
  const auto held = static_cast<double>(window.batches);
  if (!loop_.sync || held == steps) return {.loss = 1 / steps, .average = 1};
  // Once a backward of this scope has averaged, the accumulated gradients are already right.
  if (window.averaged || held == 1) return {.loss = 1 / held, .average = 1};
  return {.loss = 1 / steps, .average = steps / held};
}

BackwardScale Accumulation::scale(std::optional<double> weight, int world_size,
                                  const std::function<double(double)>& sum_over_ranks) {
  const auto share = [&](double own) {
    const double total = sum_over_ranks(own);
    return total > 0 ? world_size / total : 0;
  };
  if (scope_.empty()) {
    if (weight) return {.loss = share(*weight), .average = 1};
    return {.loss = 1 / static_cast<double>(config_.gradient_accumulation_steps), .average = 1};
  }
  // The models of a scope have the same window.
  Window& window = windows_[scope_[0]];
  (weight ? window.weighted : window.plain) = true;
  if (window.weighted && window.plain) {
    fail_usage("backward with and without a weight in one accumulation window",
               scope_[0]->model().name, "give every backward of a window a weight, or none");
  }
  BackwardScale result;
  if (weight) {
    if (window.averaged) {
      fail_usage("a second backward with a weight in a step that has averaged its gradients",
                 scope_[0]->model().name,
                 "add the losses and the weights and call backward once; give each model "
                 "an accumulate() of its own");
    }
    window.weight += *weight;
    if (loop_.sync) {
      const double factor = share(window.weight);
      (window.batches == 1 ? result.loss : result.average) = factor;
    }
  } else {
    result = plain_scale(window);
  }
  window.averaged = loop_.sync;
  return result;
}

}  // namespace coupler
