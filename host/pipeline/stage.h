// PipelineStage: how a model is kept on the ranks of a pipeline: each has the parameters of its own
// layers, all others are on meta. A parameter that layers of several stages use (tied) is on each
// of them, and its gradients are summed over those. Buffers are small and stay on every rank, but
// only their own layers' stage changes them. Used by the thread that trains.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "strategy/flat_parameters.h"
#include "strategy/strategy.h"

namespace coupler {

// Which stages (ranks of the pipeline's communicator) keep what, in ascending order, at least one
// each.
struct StagePlan {
  std::vector<std::vector<int>> parameters;  // one for each of Model::parameters
  std::vector<int> buffers;                  // the stage that changes it
};

class PipelineStage : public Strategy {
 public:
  // Every rank's values become rank 0's; tensors on meta are made on rank 0, one at a time, and
  // sent to where they are kept. comm: the pipeline's own; its size is the number of stages.
  // Collective.
  PipelineStage(Model model, StagePlan plan, std::shared_ptr<Communicator> comm);

  // Around the backwards of one batch. finish_gradients sums those of tied parameters. Collective
  // among the stages that share some.
  void begin_gradients();
  void finish_gradients();

  FlatParameters& flat() override { return *flat_; }
  std::vector<at::Tensor> held_for(const at::Tensor& parameter) override;
  void parameters_changed() override {}
  void set_sync(bool) override {}
  void begin_backward(double factor) override;  // throws: the pipeline runs backward itself
  void end_backward() override {}
  void abandon_backward() override {}
  double clip_grad_norm(double max_norm) override;
  void clip_grad_value(double max_value) override;
  std::vector<at::Tensor> own_gradients() override;
  std::string description() const override;
  bool parameters_stay() const override { return true; }
  ModelTypes types() const override;
  at::Tensor whole_gradient(const at::Tensor& parameter) override;
  std::vector<ParameterPart> parts() override;
  at::Tensor whole_parameter(size_t parameter) override;
  void settle() override;

 private:
  struct Tied {
    size_t parameter;
    Communicator* comm;  // of the stages that keep it
    at::Tensor before;   // its gradient of earlier batches, while those of one are summed
  };
  bool keeps(size_t parameter) const;
  void take_values();
  void make_tied_communicators();
  const at::Tensor& variable(size_t i) const { return model().parameters[i].tensor; }

  const StagePlan plan_;
  const std::shared_ptr<Communicator> comm_;
  std::unique_ptr<FlatParameters> flat_;
  std::vector<std::shared_ptr<Communicator>> tied_comms_;
  std::vector<Tied> tied_;
};

}  // namespace coupler
