// Strategy: how one prepared model is kept on the ranks: whole on each (DataParallel), sharded
// (ShardedModel) or split into pipeline stages (PipelineStage). Used by the training thread.
//
// A strategy implements three roles: the state that this rank keeps (ModelState), what backward
// does with gradients (GradientSync, often an object of its own), and, here, what involves all
// ranks. Its constructor fills flat() and calls describe().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/gradient_sync.h"
#include "strategy/model.h"
#include "strategy/model_state.h"

namespace coupler::strategy {

struct NamedHook;  // comm_hook.h

// Plain data.
struct StrategyDescription {
  std::string text;  // how the model is kept, in a few words
  ModelTypes types;
  // Whether the values of parameters stay in memory from one use to the next.
  bool parameters_stay = true;
};

class Strategy : public ModelState {
 public:
  using ModelState::ModelState;

  const StrategyDescription& description() const { return description_; }

  // Ask for it each time: it may be replaced between two backwards.
  virtual GradientSync& gradient_sync() = 0;

  // From the next backward on, the hook reduces the gradients; null: none does. At the same point
  // on every rank. Throws Error(kUnsupported) if gradients are not averaged here.
  void set_comm_hook(const std::shared_ptr<const NamedHook>& hook) {
    use_comm_hook(hook);
    comm_hook_ = hook;
  }
  const std::shared_ptr<const NamedHook>& comm_hook() const { return comm_hook_; }

  // The norm over all ranks. Throws Error naming a parameter if it is not finite. Collective.
  virtual double gradient_norm(const GradientNorm& which) = 0;
  // Scales these gradients by max_norm / norm if that is below 1.
  void limit_gradients(const GradientNorm& which, double norm, double max_norm);
  void clip_grad_value(double max_value);

  // The whole gradient of a parameter of model().parameters; undefined if no rank has one.
  // Collective.
  virtual at::Tensor whole_gradient(size_t parameter) = 0;
  // A whole parameter; do not keep it. Collective.
  virtual at::Tensor whole_parameter(size_t parameter) = 0;
  // Makes equal on all ranks what may differ during training (parameters between two averages,
  // buffers that one rank's modules change). Call before they are saved. Collective.
  virtual void synchronize() {}

 protected:
  void describe(StrategyDescription description) { description_ = std::move(description); }
  virtual void use_comm_hook(const std::shared_ptr<const NamedHook>& hook);
  // This rank's gradients of these parameters, in as few tensors as possible.
  std::vector<at::Tensor> gradients_of(const GradientNorm& which);
  // The first of these parameters that has a gradient with infinite or NaN elements on this rank;
  // the number of parameters if there is none.
  size_t first_not_finite(const GradientNorm& which);

 private:
  StrategyDescription description_;
  std::shared_ptr<const NamedHook> comm_hook_;  // null: none
};

// The ranks among which parallel.shard divides one replica of a model.
struct ShardGroup {
  std::shared_ptr<comm::Communicator> comm;  // null: the backend's plan says which ranks share one
  int replica = 0;                           // the replica's number
  // What profiles call the ranks that hold the same part of several replicas.
  std::string copies_group = {};
};

// Shards the model according to the backend's plan, or keeps it whole on every rank if there is
// none. comm: only for gradients; null for one process without such a backend. Throws
// Error(kConfig) if the settings in communication or memory, or the group, contradict the plan.
// Collective.
std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<comm::Communicator> comm,
                                        const config::TrainingConfig& config,
                                        const config::MemoryConfig& memory,
                                        const config::CommunicationConfig& communication = {},
                                        const ShardGroup& group = {});

}  // namespace coupler::strategy
