#include "estimate/simulate.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "estimate/model_simulation.h"

namespace coupler::estimate {
namespace {

using Kind = StepEvent::Kind;

// One in this many bytes of a process that communicates after its heap was trimmed last: the
// threads that do so allocate in between, and repeated runs of one job peak up to a tenth apart.
constexpr uint64_t kInterleavedShare = 20;

class StepSimulation {
 public:
  StepSimulation(const StepLog& log, const std::vector<EstimatePlan>& plans)
      : log_(log), ledger_(log.base_bytes), divided_(false) {
    for (size_t i = 0; i < log.models.size(); ++i) {
      models_.emplace_back(ledger_, log, log.models[i], plans[i]);
      divided_ = divided_ || plans[i].reduces();
    }
  }

  MemoryEstimate run() {
    for (ModelSimulation& model : models_) model.prepare();
    // Of a model without a program, no backward leaves any.
    if (log_.pipeline.stages > 0 && log_.events.empty()) {
      for (ModelSimulation& model : models_) model.keep_gradients();
    }
    for (ModelSimulation& model : models_) model.make_optimizer_state();
    // The first pass records the order in which units are used, as a job's first step does.
    for (int pass = 0; pass < 3; ++pass) step();
    return ledger_.result();
  }

 private:
  void step() {
    ledger_.enter("forward");
    for (size_t i = 0; i < log_.events.size(); ++i) {
      const StepEvent& event = log_.events[i];
      if (event.kind == Kind::kGradient && i < log_.initial) {
        MemoryLedger::Block& block = blocks_[event.storage];
        divided_ ? ledger_.give_back(block) : ledger_.move(block, MemoryCategory::kGradients);
        continue;
      }
      take(event);
    }
    for (auto& [storage, block] : blocks_) ledger_.give_back(block);
    blocks_.clear();
  }

  void take(const StepEvent& event) {
    switch (event.kind) {
      case Kind::kMade:
        blocks_[event.storage] = ledger_.take(MemoryCategory::kActivations, bytes_of(event));
        return;
      case Kind::kGone:
        ledger_.give_back(blocks_[event.storage]);
        blocks_.erase(event.storage);
        return;
      case Kind::kUsed:
        return model_of(event.index).use(event.index - first_);
      case Kind::kGradient: {
        MemoryLedger::Block& block = blocks_[event.storage];
        model_of(event.index).take_gradient(event.index - first_, block, event.bytes == 1);
        return;
      }
      case Kind::kBackwardBegan:
        return ledger_.enter("backward");
      case Kind::kBackwardEnded:
        for (ModelSimulation& model : models_) model.backward_ended(event.bytes == 1);
        in_step_ = event.bytes == 1;
        return ledger_.enter(in_step_ ? "step" : "forward");
      case Kind::kStepped:
        for (ModelSimulation& model : models_) model.stepped();
        in_step_ = false;
        return ledger_.enter("forward");
    }
  }

  // An optimizer that is not fused makes temporary tensors as large as what it updates.
  uint64_t bytes_of(const StepEvent& event) const {
    if (!in_step_ || log_.optimizer_fused) return event.bytes;
    return static_cast<uint64_t>(static_cast<double>(event.bytes) * models_.front().share());
  }

  ModelSimulation& model_of(uint64_t parameter) {
    size_t i = 0;
    while (i + 1 < log_.models.size() && parameter >= log_.models[i + 1].first_parameter) ++i;
    first_ = log_.models[i].first_parameter;
    return models_[i];
  }

  const StepLog& log_;
  MemoryLedger ledger_;
  std::deque<ModelSimulation> models_;
  std::unordered_map<uint64_t, MemoryLedger::Block> blocks_;  // by storage
  bool divided_, in_step_ = false;
  uint64_t first_ = 0;  // of the model that model_of() returned
};

}  // namespace

MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans) {
  MemoryEstimate estimate = StepSimulation(log, plans).run();
  // Ranks that shard trim theirs when they prepare; those that divide layers communicate in each.
  const bool trims = std::any_of(plans.begin(), plans.end(),
                                 [](const EstimatePlan& plan) { return plan.sharded(); });
  const bool divides = std::any_of(log.models.begin(), log.models.end(),
                                   [](const LoggedModel& model) { return model.divided(); });
  if ((!trims || divides) && !log.events.empty()) {
    const uint64_t lost = (estimate.peak - estimate.base) / kInterleavedShare;
    estimate.peak += lost;
    estimate.heap += lost;
  }
  return estimate;
}

}  // namespace coupler::estimate
