// ShardedModel: one model whose parameters, gradients and optimizer state are sharded over ranks
// according to a sharding plugin's plan. Units that are not kept whole become resident through the
// intercept; gradients are reduced into shards while backward runs, in one fixed order. Used by the
// training thread; other threads may use the model itself.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "residency/offloaded_memory.h"
#include "residency/residency.h"
#include "strategy/gradient_hooks.h"
#include "strategy/gradient_sync.h"
#include "strategy/plan.h"
#include "strategy/shard_unit.h"
#include "strategy/strategy.h"

namespace coupler::strategy {

class ShardedModel : public Strategy,
                     public GradientSync,
                     public GradientListener,
                     public std::enable_shared_from_this<ShardedModel> {
 public:
  // Collective. comm: only for gradients. Starts from rank 0's values; a model on meta is
  // materialized here, tensor by tensor.
  static std::shared_ptr<ShardedModel> make(Model model, ShardPlan plan,
                                            std::shared_ptr<comm::Communicator> comm,
                                            const config::TrainingConfig& config,
                                            const config::CommunicationConfig& communication);

  std::optional<ParameterPart> part(size_t parameter) override;
  at::ScalarType stored_type(size_t parameter) const override;
  void parameters_changed(ParameterWriter) override;
  std::vector<at::Tensor> own_gradients() override;
  std::vector<StateTensor> state_tensors() override;

  GradientSync& gradient_sync() override { return *this; }
  void begin_backward(double factor) override;
  void end_backward(bool takes_part) override;
  void abandon_backward() override;

  double gradient_norm(const GradientNorm& which) override;
  at::Tensor whole_gradient(size_t parameter) override;
  at::Tensor whole_parameter(size_t parameter) override;

 private:
  // Where a parameter is: in a unit, or replicated (whole on every rank, its gradient averaged).
  struct Place {
    ShardUnit* unit = nullptr;  // null: replicated
    size_t index = 0;           // in the unit's members, or in replicated_'s slots unless frozen
  };
  ShardedModel(Model model, ShardPlan plan, std::shared_ptr<comm::Communicator> comm,
               const config::TrainingConfig& config);
  void make_communicators();
  void make_offloaded_memory();
  void encode_gradients(const config::CommunicationConfig& communication);
  void give_memory();
  void take_values();
  void make_managed_parameters();
  void add_variables();
  void install_hooks();
  void use_comm_hook(const std::shared_ptr<const NamedHook>&) override {}  // begin() asks for it

  void on_gradient(size_t parameter) override;
  void begin();
  void change_hook(std::shared_ptr<const NamedHook> hook);
  void launch_ready();
  void launch(size_t position);
  UnitHook hook_of(const ShardUnit& unit, bool last) const;
  std::vector<std::shared_ptr<comm::Communicator>> communicators() const;
  void finish_reduction();
  void finish();
  void take_rest(uint8_t* used);
  void reduce_replicated();
  void reduce_by_hook(size_t group);
  void learn_launch_order();
  void give_up_order();
  void publish(const at::Tensor& used);
  bool hand_over(ShardUnit& unit);
  void check_parameters() const;
  at::Tensor gradient_of(size_t parameter) const;
  at::Tensor gather_member(size_t parameter, const at::Tensor& shard);

  ShardPlan plan_;
  ShardComms comms_;
  residency::BufferPool pool_;
  std::unique_ptr<residency::OffloadedMemory> optimizer_memory_,
      parameter_memory_;  // null: not offloaded
  std::vector<std::unique_ptr<ShardUnit>> units_;
  std::vector<ShardUnit*> resident_units_;  // by number in residency_
  std::vector<Place> places_;               // by model parameter
  std::vector<at::Tensor> buffers_;         // broadcast from rank 0 after each reduction; or none
  FlatParameters replicated_;
  std::vector<uint8_t> replicated_taken_;  // by slot of replicated_, in this backward
  std::unique_ptr<residency::Residency> residency_;
  GradientHooks hooks_;
  std::shared_ptr<const NamedHook> hook_;  // of the current backward; null: none

  std::vector<size_t> launch_order_;      // of units
  std::vector<size_t> completion_order_;  // in the first backward
  size_t next_launch_ = 0;
  ShardUnit* under_way_ = nullptr;  // the unit whose reduction is in flight
  bool order_learned_ = false;
  bool order_given_up_ = false;  // ranks use units in different orders
  double factor_ = 1;            // of the next average
  bool active_ = false;          // between the first hook of a backward and finish()
  bool touched_ = false;         // a hook ran since begin_backward()
};

}  // namespace coupler::strategy
