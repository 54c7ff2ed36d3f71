// DataParallel: one model under the replicate strategy (data parallelism): every rank holds it
// whole, starts from rank 0's values, and averages gradients. Used by the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "residency/offloaded_memory.h"
#include "strategy/gradient_reducer.h"
#include "strategy/gradient_sync.h"
#include "strategy/local_sgd.h"
#include "strategy/strategy.h"

namespace coupler {

class DataParallel : public Strategy {
 public:
  // Broadcasts parameters and buffers from rank 0 (collective if comm has several ranks) and moves
  // the trainable parameters into flat memory. Every parameter of the module stays the same
  // variable; those on meta are materialized. comm: only for gradients; null for one process.
  // Throws Error(kConfig, kIo) if an optimizer's state cannot be offloaded as configured.
  // Throws Error(kUnsupported) if the transport lacks what a compression needs.
  DataParallel(Model model, std::shared_ptr<Communicator> comm, const TrainingConfig& config,
               const MemoryConfig& memory, const CommunicationConfig& communication = {});

  // Between begin and end the ranks train independently: gradients are not averaged. Call
  // average_if_due() after optimizer steps; it averages parameters over ranks once `steps` steps
  // were taken. end_local_sgd averages the rest; average: false if the ranks may no longer meet.
  // Throws Error(kUsage) within another pair. Collective.
  void begin_local_sgd(int64_t steps);
  void average_if_due();
  void end_local_sgd(bool average);

  GradientSync& gradient_sync() override;
  std::optional<ParameterPart> part(size_t parameter) override;
  void parameters_changed(ParameterWriter writer) override;
  std::vector<StateTensor> state_tensors() override;
  void synchronize() override {
    if (local_sgd_ != nullptr) local_sgd_->synchronize();
  }
  at::Tensor whole_gradient(size_t parameter) override {
    return model().parameters[parameter].tensor.grad();
  }
  at::Tensor whole_parameter(size_t parameter) override {
    return model().parameters[parameter].tensor.detach();
  }

 private:
  void make_meta_tensors();
  double gradient_norm() override;
  // Whether gradients are averaged if set_sync allows it.
  bool averages_gradients() const { return reducer_ != nullptr && !in_local_sgd_; }

  std::unique_ptr<OffloadedMemory> optimizer_memory_;  // null: optimizer state is not offloaded
  std::shared_ptr<Communicator> comm_;        // null for one process, or if nothing is trained
  std::vector<at::Tensor> buffers_;           // set to rank 0's with each average
  std::shared_ptr<LocalGradients> local_;     // used while gradients are not averaged
  std::shared_ptr<GradientReducer> reducer_;  // null for one process, or if LocalSGD is configured
  std::unique_ptr<LocalSgd> local_sgd_;       // null: not used so far
  bool in_local_sgd_ = false;                 // between its begin and end, with a reducer
  int copies_ = 1, copy_ = 0;                 // number of ranks, and this one
};

}  // namespace coupler
