// FusedKernel: SGD, Adam and AdamW of torch::optim as one kernel over flat memory. Used by the
// thread that trains.
//
// Neighbouring parameters with the same options and the same number of steps form one run, which is
// updated as if it were one tensor; where gradients are not flat (one process) a run is one
// parameter. Runs are cut anew only when the set of parameters that have a gradient changes, or
// when some were updated apart from the rest.
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/parameter_state.h"
#include "strategy/flat_parameters.h"

namespace coupler {

class FusedKernel {
 public:
  virtual ~FusedKernel() = default;

  // For an optimizer that is exactly torch::optim::SGD, Adam or AdamW with all parameters (where
  // state is offloaded, all that are not frozen) in the flat memory of the models; null for any
  // other, with the reason in why.
  static std::unique_ptr<FusedKernel> make(torch::optim::Optimizer& optimizer,
                                           const std::vector<FlatParameters*>& models,
                                           std::string& why);

  virtual std::string name() const = 0;
  // Updates every parameter that has a gradient.
  void step();
  // The same for slots [first, end) of one of the models. It drops their gradients, so that the
  // next step() leaves them out.
  void step_slots(const FlatParameters& model, size_t first, size_t end);

  // What is remembered of a variable that the optimizer holds: views of flat memory, to be written
  // to by a checkpoint's loader, which sets the steps it has taken, too.
  ParameterState state_of(const at::Tensor& held);
  void set_steps(const at::Tensor& held, int64_t steps);

 protected:
  // The runs that one kernel call updates: same options, and all or none in their first step. What
  // is offloaded goes group by group, since a call needs all it updates in memory.
  struct Batch {
    torch::optim::OptimizerOptions* options = nullptr;
    bool first_step = false;
    const FlatGroup* alone = nullptr;  // the one group; null: any that are in memory
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> state;  // by state tensor of the kernel, then by run
    std::vector<at::Tensor> steps;               // 0-dim float, this update counted
    std::vector<int> member;  // by run: index of the one member whose .grad is read anew, or -1
  };

  // state_names: of the tensors of the kernel's state, as torch::optim calls them.
  FusedKernel(torch::optim::Optimizer& optimizer, const std::vector<FlatParameters*>& models,
              std::vector<std::string> state_names);
  virtual void update(Batch& batch) = 0;

 private:
  struct Member {
    FlatParameters* model = nullptr;
    FlatSlot* slot = nullptr;
    size_t slot_index = 0;
    std::vector<at::Tensor>* state = nullptr;  // of its group: flat, laid out as the parameters
    torch::optim::OptimizerOptions* options = nullptr;
    int64_t steps = 0;
  };
  enum class Gradient : uint8_t { kNone, kFlat, kOwn };

  // The runs of members [first, end), for as long as they find them as they were.
  struct Runs {
    size_t first = 0, end = 0;
    std::vector<Gradient> gradients;  // by member, when they were cut
    std::vector<int64_t> steps;       // likewise, those taken since counted
    bool first_step = false;          // some member was in its first
    std::vector<Batch> batches;
  };

  Member& member_of(const at::Tensor& held);
  static Gradient gradient_of(const Member& member);
  void require_frozen() const;
  Runs runs_of(size_t first, size_t end) const;
  void step(Runs& runs);
  void cut(Runs& runs) const;
  static int64_t padded_end(const FlatParameters& model, size_t slot_index);
  Batch& batch_for(Runs& runs, const Member& member) const;

  std::vector<at::Tensor> frozen_;  // what the optimizer holds beside them
  std::vector<Member> members_;     // in flat order
  Runs all_;
  std::map<std::pair<size_t, size_t>, Runs> apart_;  // of step_slots, by members
  // By model and dtype group, then by state tensor.
  std::vector<std::vector<std::vector<at::Tensor>>> state_;
  std::vector<std::string> state_names_;
};

}  // namespace coupler
