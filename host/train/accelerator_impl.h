// Accelerator::Impl: what the parts of the Accelerator share. One per process; used by the thread
// that trains.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/detail/loader_view.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "estimate/step_log.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer_state.h"
#include "optim/rate_driver.h"
#include "optim/scheduler_core.h"
#include "plugin/plugin.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store.h"
#include "strategy/strategy.h"
#include "train/accumulation.h"
#include "train/tracking.h"

namespace coupler {

class DryRun;
class Profile;

// An optimizer given to prepare, as long as somebody holds what came back.
struct PreparedOptimizer {
  const torch::optim::Optimizer* optimizer;  // to be compared only, with its first parameter: a
  at::Tensor first_parameter;                // later one may lie at the same address
  std::weak_ptr<OptimizerState> state;
};

class Accelerator::Impl {
 public:
  // Joins the other processes.
  explicit Impl(Config loaded);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The strategy of a prepared model; null, or Error(kUsage), where there is none.
  std::shared_ptr<Strategy> find(const void* identity) const;
  Strategy& strategy_of(const detail::ModelRef& model) const;

  // The innermost loop under way over a prepared loader; null where there is none.
  std::shared_ptr<detail::LoaderView> current_loader() const;
  // Of the batch now held by this rank; none outside of a loop.
  std::optional<detail::BatchSamples> batch_samples() const;

  // Prepares a model. Collective.
  void add(Model model);

  // With memory.limit: whether the models prepared so far fit, with an optimizer's state of so many
  // bytes a byte of parameters. Throws Error(kConfig).
  void check_memory(const Model* coming, double optimizer_factor);

  // Makes a scheduler whose optimizer is found when all of prepare's objects are.
  Scheduler add(std::unique_ptr<RateDriver> driver);

  // The loss that backward is to run on. expected: the models that it must reach.
  at::Tensor scale_loss(const at::Tensor& loss, const std::vector<Strategy*>& expected);
  // Unscales a model's gradients where that is to be done; whether its step will be skipped.
  bool unscale(Strategy& model) { return scaler != nullptr && scaler->unscale({&model}); }

  Config config;
  ProcessInfo process;
  DryRun* dry_run;                 // null but in a dry run
  c10::Device device = c10::kCPU;  // this process's
  Plugin plugin = Plugin::single();
  std::shared_ptr<Store> store;
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Communicator> gradient_comm;  // made with the first model
  std::optional<at::ScalarType> autocast_type;  // of training.mixed_precision; none: no
  std::atomic<bool> autocast_used = false;
  std::unique_ptr<LossScaler> scaler;  // with fp16
  StepLog memory_log;                  // with memory.limit: the models prepared
  std::vector<std::shared_ptr<Strategy>> models;
  std::vector<PreparedOptimizer> optimizers;
  std::vector<std::weak_ptr<SchedulerCore>> schedulers;
  std::vector<std::weak_ptr<SchedulerCore>> unbound_schedulers;  // of the prepare under way
  std::vector<std::weak_ptr<detail::LoaderView>> loaders;
  Accumulation accumulation{config.training};
  Tracking tracking;
  bool trigger = false;                      // set on this rank since the last check
  std::unique_ptr<Profile> profile;          // null: nothing is profiled
  std::unique_ptr<Checkpoints> checkpoints;  // last: its thread ends before the rest
};

}  // namespace coupler
