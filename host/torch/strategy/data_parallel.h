// DataParallel: one model under the replicate strategy (data parallelism): every rank holds it whole,
// starts from rank 0's values, and averages gradients. Used by the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "residency/offloaded_memory.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_reducer.h"
#include "strategy/local_sgd.h"
#include "strategy/strategy.h"

namespace coupler {

// LocalGradients: offers the gradients of a model trained by a single process to their users as they
// arrive. Hooks run on the thread that runs backward.
class LocalGradients final : public GradientListener,
                            public std::enable_shared_from_this<LocalGradients> {
 public:
  // Both must outlive this.
  LocalGradients(FlatParameters& flat, const GradientUsers& users);

  // Puts the hooks on the parameters. Call once, after construction in a shared_ptr.
  void install();

  // Sets whether the next backward's gradients are offered.
  void set_offers(bool offers) { offers_ = offers; }
  // Call after a backward that threw.
  void abandon_backward() { active_ = false; }

 private:
  void on_gradient(size_t slot) override;

  FlatParameters& flat_;
  const GradientUsers& users_;
  std::vector<uint8_t> used_;  // by slot, whether used in this backward
  GradientHooks hooks_;
  bool offers_ = true;
  bool active_ = false;  // between the first hook of a backward and its end
};

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

  FlatParameters& flat() override { return *flat_; }
  std::vector<at::Tensor> held_for(const at::Tensor& parameter) override { return {parameter}; }
  void parameters_changed() override {}
  void stepped() override;
  void loaded() override {
    if (local_sgd_ != nullptr) local_sgd_->begin_anew();
  }
  void settle() override {
    if (local_sgd_ != nullptr) local_sgd_->settle();
  }
  NamedTensors carried() override;
  void gradient_scale_changes(double factor) override {
    if (reducer_ != nullptr) reducer_->gradient_scale_changes(factor);
  }
  void set_sync(bool sync) override;
  void begin_backward(double factor) override;
  void end_backward() override;
  void abandon_backward() override;
  void add_gradient_user(const std::shared_ptr<GradientConsumer>& user) override;
  double clip_grad_norm(double max_norm) override;
  void clip_grad_value(double max_value) override;
  std::vector<at::Tensor> own_gradients() override;
  std::string description() const override { return "whole on every rank"; }
  bool parameters_stay() const override { return true; }
  ModelTypes types() const override;
  at::Tensor whole_gradient(const at::Tensor& parameter) override { return parameter.grad(); }
  std::vector<ParameterPart> parts() override;
  at::Tensor whole_parameter(size_t parameter) override {
    return model().parameters[parameter].tensor.detach();
  }

 private:
  void make_meta_tensors();
  void choose_offers();
  // Whether gradients are averaged if set_sync allows it.
  bool averages_gradients() const { return reducer_ != nullptr && !in_local_sgd_; }

  std::unique_ptr<OffloadedMemory> optimizer_memory_;  // null: optimizer state is not offloaded
  std::unique_ptr<FlatParameters> flat_;
  std::shared_ptr<Communicator> comm_;        // null for one process, or if nothing is trained
  std::vector<at::Tensor> buffers_;           // set to rank 0's with each average
  std::shared_ptr<GradientReducer> reducer_;  // null for one process, or if LocalSGD is configured
  std::unique_ptr<LocalSgd> local_sgd_;       // null: not used so far
  bool in_local_sgd_ = false;                 // between its begin and end, with a reducer
  std::shared_ptr<LocalGradients> lone_;       // without a reducer, if gradients have users
  int copies_ = 1, copy_ = 0;                 // number of ranks, and this one
  bool sync_ = true;
  double factor_ = 1;  // of the current backward
};

}  // namespace coupler
