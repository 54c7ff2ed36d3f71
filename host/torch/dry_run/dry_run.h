// DryRun: runs a training program on fake tensors until its optimizers have made two steps, logs
// the second, and ends the process. Enabled by the environment variable COUPLER_ESTIMATE=FILE,
// which names the log file. The process stands for one rank: of a pipeline, that of the stage
// COUPLER_ESTIMATE_STAGE. Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/processes.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dry_run/fake_tensors.h"
#include "estimate/step_log.h"
#include "strategy/gradient_hooks.h"
#include "strategy/model.h"

namespace coupler::dry_run {

// Describes a model for estimates, with divided layers as they are. A pure function.
estimate::LoggedModel describe_for_estimate(const strategy::Model& model);

class DryRun final : public FakeObserver, public strategy::GradientListener {
 public:
  // Null unless COUPLER_ESTIMATE is set. The first call begins the dry run.
  static DryRun* of_process();

  void set_configuration(const std::string& mixed_precision,
                         const std::vector<std::string>& activation_checkpointing);
  // The job's, of which this process stands for one rank.
  void set_mesh(const Mesh& mesh) { log_.mesh = mesh.sizes(); }
  // Of a pipeline, from 0; 0 unless COUPLER_ESTIMATE_STAGE is set.
  int stage() const { return stage_; }
  void set_pipeline(const estimate::LoggedPipeline& pipeline) { log_.pipeline = pipeline; }
  // Call for each mixture of experts, with the number of them.
  void add_experts(int64_t experts);
  // Call before layers are divided: makes the parameters fake.
  void make_fake(const strategy::Model& model);
  // Call with the same model before a strategy takes it. elsewhere: which of its parameters only
  // other stages of a pipeline keep; empty: none.
  void take(const strategy::Model& model, const std::vector<bool>& elsewhere = {});
  // Call after a strategy has placed the parameters.
  void watch(const strategy::Model& model);
  // Called when an optimizer was prepared, and after each of its steps. The last stepped() of a dry
  // run does not return.
  void add_optimizer(const void* optimizer, const std::string& description, bool fused);
  void stepped(const void* optimizer);
  void backward_begins(bool reduced);
  void backward_ends();

  void made(uint64_t storage, uint64_t bytes) override;
  void gone(uint64_t storage) override;
  void used(const at::Tensor& tensor) override;
  void on_gradient(size_t parameter) override;

 private:
  friend class Unlogged;
  DryRun(std::string file, int stage);
  void begin_log();
  [[noreturn]] void finish();
  void add(estimate::StepEvent event);

  struct Range {  // of one storage, in bytes
    int64_t begin = 0, end = 0;
    uint64_t parameter = 0;
  };
  const std::string file_;
  const int stage_;
  estimate::StepLog log_;
  std::vector<bool> in_memory_, never_whole_;  // by parameter, what make_fake found
  std::vector<at::Tensor> parameters_;
  std::unordered_map<const c10::StorageImpl*, std::vector<Range>> ranges_;
  std::unordered_map<uint64_t, uint64_t> alive_;  // bytes by storage
  std::unordered_set<uint64_t> lasting_;          // storages of parameters and buffers
  std::unordered_set<uint64_t> new_since_backward_, optimizer_state_;
  std::unordered_map<const void*, int> steps_;  // by optimizer
  std::shared_ptr<DryRun> self_;                // for hooks, which hold it weakly
  strategy::GradientHooks hooks_;
  bool logging_ = false, reduced_ = true;
  uint64_t last_used_ = ~uint64_t{0};
};

// While it lives, nothing is logged: what happens would happen on other ranks. What is made
// meanwhile must end with it.
class Unlogged {
 public:
  explicit Unlogged(DryRun& run) : run_(run), before_(std::exchange(run.logging_, false)) {}
  ~Unlogged() { run_.logging_ = before_; }
  Unlogged(const Unlogged&) = delete;
  Unlogged& operator=(const Unlogged&) = delete;

 private:
  DryRun& run_;
  const bool before_;
};

}  // namespace coupler::dry_run
