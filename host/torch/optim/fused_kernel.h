// FusedKernel: torch::optim's SGD, Adam and AdamW, and elementwise ParameterOptimizers, over flat
// memory. Used by the training thread.
//
// Adjacent parameters with the same options and the same number of steps form one run, which is
// updated as if it were one tensor. If gradients are not flat (one process), a run is one
// parameter. Runs are recomputed only when the set of parameters that have a gradient changes, or
// when some were updated separately.
#pragma once

#include <coupler/optimizers.h>
#include <torch/optim/optimizer.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/torch_state.h"
#include "strategy/flat_parameters.h"

namespace coupler::optim {

// The runs that one kernel call updates: same options, and all or none in their first step.
// Offloaded state goes group by group, since a call needs everything it updates in memory.
struct FusedBatch {
  torch::optim::OptimizerOptions* options = nullptr;
  bool first_step = false;
  const strategy::FlatGroup* alone = nullptr;  // the only group; null: any in memory
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> state;  // by state tensor of the kernel, then by run
  std::vector<at::Tensor> steps;               // 0-dim float, including this update; by run
  std::map<int64_t, at::Tensor> counters;      // the tensors of steps, each once
  std::vector<int> member;  // by run: the one member whose .grad is read at each step, or -1
  // By run: the number of this update, from 1.
  std::vector<int64_t> numbers;
};

// One of the optimizers that have a kernel.
struct FusedKind {
  std::string name;
  std::vector<std::string> state_names;  // its state tensors, as torch::optim names them
  std::function<void(FusedBatch& batch)> update;
};

class FusedKernel {
 public:
  // The optimizer must be an elementwise ParameterOptimizer, or exactly torch::optim::SGD, Adam or
  // AdamW, with all its parameters in the
  // flat memory of the models (with offloaded state, all that are not frozen). Otherwise returns
  // null and puts the reason into why.
  static std::unique_ptr<FusedKernel> make(torch::optim::Optimizer& optimizer,
                                           const std::vector<strategy::FlatParameters*>& models,
                                           std::string& why);

  // Takes over the optimizer's groups, of which it may have been given more. models: those it had,
  // then more. The state and the steps of earlier variables stay. Throws Error if offloaded memory
  // for more state cannot be had; then nothing has changed.
  void take_groups(torch::optim::Optimizer& optimizer,
                   const std::vector<strategy::FlatParameters*>& models);

  const std::string& name() const { return kind_.name; }
  // Updates every parameter that has a gradient.
  void step();
  // The same for slots [first, end) of one of the models. Drops their gradients, so that the next
  // step() skips them.
  void step_slots(const strategy::FlatParameters& model, size_t first, size_t end);

  // ParameterOptimizer::switch_mode for the parameters of each group.
  void switch_mode(const ParameterOptimizer& optimizer, bool training);

  // The state of a variable that the optimizer holds, as views of flat memory. A checkpoint's
  // loader writes to these and calls set_steps.
  ParameterState state_of(const at::Tensor& held);
  void set_steps(const at::Tensor& held, int64_t steps);

 private:
  struct Member {
    const strategy::FlatParameters* model = nullptr;
    const strategy::FlatGroup* group = nullptr;
    const strategy::FlatSlot* slot = nullptr;
    size_t slot_index = 0;
    std::vector<at::Tensor>* state = nullptr;  // of its group: flat, laid out like the parameters
    torch::optim::OptimizerOptions* options = nullptr;
    int64_t steps = 0;
  };
  enum class Gradient : uint8_t { kNone, kFlat, kOwn };

  // The runs of members [first, end), valid while the members' gradients and steps match these.
  struct Runs {
    size_t first = 0, end = 0;
    std::vector<Gradient> gradients;  // by member, when the runs were cut
    std::vector<int64_t> steps;       // likewise, plus the steps taken since
    bool first_step = false;          // some member was in its first step
    std::vector<FusedBatch> batches;
  };

  explicit FusedKernel(FusedKind kind) : kind_(std::move(kind)) {}
  Member& member_of(const at::Tensor& held);
  static Gradient gradient_of(const Member& member);
  void require_frozen() const;
  Runs runs_of(size_t first, size_t end) const;
  void step(Runs& runs);
  void cut(Runs& runs) const;
  static int64_t padded_end(const Member& member);
  FusedBatch& batch_for(Runs& runs, const Member& member) const;

  FusedKind kind_;
  std::vector<at::Tensor> frozen_;  // parameters the optimizer holds outside the models
  std::vector<Member> members_;     // in flat order
  Runs all_;
  std::map<std::pair<size_t, size_t>, Runs> apart_;  // for step_slots, by range of members
  std::deque<std::vector<at::Tensor>> state_;        // by group, then by state tensor
};

}  // namespace coupler::optim
