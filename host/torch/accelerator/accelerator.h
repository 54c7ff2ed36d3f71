// Accelerator::Impl: what the parts of the Accelerator share. One per process; used by the training
// thread, as is the process's current Accelerator.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/detail/loader.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerator/accumulation.h"
#include "accelerator/tracking.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "estimate/step_log.h"
#include "expert_parallel/divide_experts.h"
#include "groups/groups.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "optim/rate_driver.h"
#include "optim/scheduler.h"
#include "plugin/plugin.h"
#include "rendezvous/process_info.h"
#include "sharding/tensor_plan.h"
#include "store/store.h"
#include "strategy/strategy.h"

namespace coupler {

namespace dry_run {
class DryRun;
}
class Profile;

// An optimizer given to prepare, while the returned handle is alive.
struct PreparedOptimizer {
  const torch::optim::Optimizer* optimizer;  // only compared, together with its first
  at::Tensor first_parameter;                // parameter: addresses may be reused
  std::weak_ptr<optim::OptimizerState> state;
};

class Accelerator::Impl {
 public:
  // Joins the other processes.
  explicit Impl(config::Config loaded);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The strategy of a prepared model. Without one, find returns null and strategy_of throws
  // Error(kUsage).
  std::shared_ptr<strategy::Strategy> find(const void* identity) const;
  strategy::Strategy& strategy_of(const detail::ModelRef& model) const;

  // The prepared loader of the innermost current loop; null outside of loops.
  std::shared_ptr<detail::LoaderCore> current_loader() const;
  // The sample counts of this rank's current batch; empty outside of a loop.
  std::optional<detail::BatchSamples> batch_samples() const;

  // Prepares a model. own_plan: how its modules say they are divided. experts: its mixtures of
  // experts. Collective.
  void add(strategy::Model model, const std::vector<sharding::PlannedLayers>& own_plan,
           const expert_parallel::Layers& experts);
  // Over the tensor group, if there is one. Collective.
  void divide_layers(strategy::Model& model, const std::vector<sharding::PlannedLayers>& own_plan);

  // Tells the layers which ranks they work with, and divides them over the expert group, if there
  // is one. Collective.
  void divide_experts(strategy::Model& model, const expert_parallel::Layers& layers);

  // Throws Error(kMismatch) if ranks that need the same samples have other loaders, and makes the
  // loader's first batch do so if it differs. Collective.
  void require_same_samples(detail::LoaderCore& loader);

  // The ranks that share one replica, if the mesh says so.
  strategy::ShardGroup shard_group();

  // With memory.limit: throws Error(kConfig) if the models prepared so far, and `coming`, do not
  // fit. optimizer_factor: bytes of optimizer state per byte of parameters.
  void check_memory(const strategy::Model* coming, double optimizer_factor);

  // Makes a scheduler. Its optimizer is looked up after all of prepare's objects are prepared.
  Scheduler add(std::unique_ptr<optim::RateDriver> driver);

  // What autocast scopes do; empty: nothing.
  std::optional<AutocastSettings> autocast_settings(bool enabled) const;

  // The factors of the next backward: those of accumulation, and 0 for the loss of a batch that
  // only stands in. weight: as of Accumulation::scale. Collective with a weight.
  BackwardScale backward_scale(std::optional<double> weight);
  // The loss to run backward on. expected: the models that it must reach.
  at::Tensor scale_loss(const at::Tensor& loss, const std::vector<strategy::Strategy*>& expected);
  // Clips the chosen gradients together.
  double clip(const std::vector<std::pair<strategy::Strategy*, strategy::GradientNorm>>& chosen,
              double max_norm, double norm_type);
  // With fp16, unscales a model's gradients. Returns whether its step will be skipped.
  bool unscale(strategy::Strategy& model) { return scaler != nullptr && scaler->unscale({&model}); }

  config::Config config;
  rendezvous::ProcessInfo process;
  dry_run::DryRun* dry_run;        // null except in a dry run
  c10::Device device = c10::kCPU;  // of this process
  plugin::Plugin plugin = plugin::Plugin::single();
  std::shared_ptr<store::Store> store;
  std::shared_ptr<comm::Communicator> comm;  // of all ranks
  std::unique_ptr<groups::Groups> groups;
  // Of the ranks that get different samples, and of those that average gradients; comm unless
  // [parallel] says otherwise.
  std::shared_ptr<comm::Communicator> sample_comm, mean_comm;
  std::shared_ptr<comm::Communicator> gradient_comm;  // ranks of mean_comm; from the first model on
  std::shared_ptr<comm::Communicator> tensor_comm;    // of divided layers; from the first on
  std::shared_ptr<comm::Communicator> context_comm;   // of attention; likewise
  // Of mixtures of experts, and of those that average their gradients; likewise.
  std::shared_ptr<comm::Communicator> expert_comm, expert_gradient_comm;
  std::optional<at::ScalarType> autocast_type;  // of training.mixed_precision; may be none
  std::atomic<bool> autocast_used = false;
  std::unique_ptr<optim::GradScaler> scaler;  // with fp16
  estimate::StepLog memory_log;               // with memory.limit: the models prepared
  std::vector<std::shared_ptr<strategy::Strategy>> models;
  std::vector<PreparedOptimizer> optimizers;
  std::vector<std::weak_ptr<optim::SchedulerCore>> schedulers;
  std::vector<std::weak_ptr<optim::SchedulerCore>> unbound_schedulers;  // of the current prepare
  std::vector<std::weak_ptr<detail::LoaderCore>> loaders;
  Accumulation accumulation{config.training};
  Tracking tracking;
  bool trigger = false;                                    // set on this rank since the last check
  std::shared_ptr<void> alive = std::make_shared<char>();  // expires with the Accelerator
  std::unique_ptr<Profile> profile;                        // null: nothing is profiled
  std::unique_ptr<Checkpoints> checkpoints;                // last: its thread uses the rest
};

// Of the latest Accelerator if a program has several; null: none.
const config::Config* current_config();
// The latest Accelerator if a program has several; null: none.
Accelerator* current_accelerator();
// For modules that combine their samples' statistics in forward and backward; null: no Accelerator,
// or no rank has other samples.
comm::Communicator* current_communicator();
// For losses of divided logits; null: no Accelerator, or no divided layers.
std::shared_ptr<comm::Communicator> current_tensor_group();

}  // namespace coupler
