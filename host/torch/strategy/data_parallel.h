// DataParallel: one model under the replicate strategy (data parallelism): every rank holds it
// whole, starts from rank 0's values, and averages gradients, or with LocalSGD now and then the
// parameters. Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "residency/offloaded_memory.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_reducer.h"
#include "strategy/gradient_sync.h"
#include "strategy/model.h"
#include "strategy/strategy.h"

namespace coupler::strategy {

// LocalSGD: ranks train independently, and every few optimizer steps their parameters become the
// average over all ranks; with momentum, that average moved further in the direction of earlier
// averages (SlowMo, Wang et al. 2020, with a slow learning rate of 1).
class LocalSgd {
 public:
  // The parameters must be equal on all ranks. buffers: set to rank 0's with each average. flat
  // must outlive this.
  LocalSgd(const config::CommunicationConfig& config, FlatParameters& flat,
           std::shared_ptr<comm::Communicator> comm, std::vector<at::Tensor> buffers);

  // Call after each step of an optimizer, on every rank.
  void stepped() { ++since_average_; }
  // Averages if the set number of steps was taken since the last average; then collective.
  void average_if_due() {
    if (since_average_ >= steps_) average();
  }
  void set_steps(int64_t steps) { steps_ = steps; }
  // Averages if steps were taken since the last average; then collective.
  void synchronize() {
    if (since_average_ > 0) average();
  }
  // Forgets those steps: the parameters in memory are now equal on all ranks.
  void restart();
  // With momentum: the velocity of each parameter.
  std::vector<StateTensor> state_tensors() const;

 private:
  void average();

  FlatParameters& flat_;
  const std::shared_ptr<comm::Communicator> comm_;
  const std::vector<at::Tensor> buffers_;
  int64_t steps_;
  const double momentum_;
  int64_t since_average_ = 0;
  std::vector<at::Tensor> previous_, velocity_;  // by group, with momentum
};

class DataParallel : public Strategy {
 public:
  // Broadcasts parameters and buffers from rank 0 (collective if comm has several ranks) and moves
  // the trainable parameters into flat memory. Every parameter of the module stays the same
  // variable; those on meta are materialized. comm: only for gradients; null for one process.
  // Throws Error(kConfig, kIo) if an optimizer's state cannot be offloaded as configured.
  // Throws Error(kUnsupported) if the transport lacks what a compression needs, or if settings of
  // communication need all parameters whole and one is divided over an expert group.
  DataParallel(Model model, std::shared_ptr<comm::Communicator> comm,
               const config::TrainingConfig& config, const config::MemoryConfig& memory,
               const config::CommunicationConfig& communication = {});

  // Between begin and end the ranks train independently: gradients are not averaged. Call
  // average_if_due() after optimizer steps; it averages parameters over ranks once `steps` steps
  // were taken. end_local_sgd averages the rest; average: false if the ranks may no longer meet.
  // Throws Error(kUsage) within another pair. Collective.
  void begin_local_sgd(int64_t steps);
  void average_if_due();
  void end_local_sgd(bool average);

  // Whether this rank's parameters may differ from those of others between two averages.
  bool trains_alone() const { return local_sgd_ != nullptr && !averages_gradients(); }

  GradientSync& gradient_sync() override;
  std::optional<ParameterPart> part(size_t parameter) override;
  void parameters_changed(ParameterWriter writer) override;
  std::vector<StateTensor> state_tensors() override;
  void synchronize() override {
    if (local_sgd_ != nullptr) local_sgd_->synchronize();
  }
  double gradient_norm(const GradientNorm& which) override;
  at::Tensor whole_gradient(size_t parameter) override {
    return model().parameters[parameter].tensor.grad();
  }
  at::Tensor whole_parameter(size_t parameter) override {
    return model().parameters[parameter].tensor.detach();
  }

 private:
  void use_comm_hook(const std::shared_ptr<const NamedHook>& hook) override;
  void make_meta_tensors();
  // The ranks that average a parameter's gradients and start from its rank 0's values; null for one
  // process.
  const std::shared_ptr<comm::Communicator>& ranks_of(const ModelParameter& parameter) const {
    return parameter.averaging != nullptr ? parameter.averaging : comm_;
  }
  void require_whole_parameters(const std::string& what, const std::string& key) const;
  // Whether gradients are averaged if set_sync allows it.
  bool averages_gradients() const { return reducer_ != nullptr && !in_local_sgd_; }

  std::unique_ptr<residency::OffloadedMemory>
      optimizer_memory_;                      // null: optimizer state is not offloaded
  std::shared_ptr<comm::Communicator> comm_;  // null for one process
  std::vector<at::Tensor> buffers_;           // set to rank 0's with each average
  std::shared_ptr<LocalGradients> local_;     // used while gradients are not averaged
  std::shared_ptr<GradientReducer> reducer_;  // null for one process, or if LocalSGD is configured
  std::unique_ptr<LocalSgd> local_sgd_;       // null: not used so far
  bool in_local_sgd_ = false;                 // between its begin and end, with a reducer
};

}  // namespace coupler::strategy
