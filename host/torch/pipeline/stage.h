// PipelineStage: keeps a model on the ranks of a pipeline. Each rank has the parameters of its own
// layers; all others are on meta. A parameter used by layers of several stages (tied) is on each of
// them, and its gradients are summed over them. Buffers are small and stay on every rank, but only
// their own layers' stage changes them. If there are several pipelines, each stage averages its
// gradients with the same stage of the others. Used by the training thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/layers.h"
#include "sharding/pipeline_schedule.h"
#include "strategy/gradient_sync.h"
#include "strategy/strategy.h"

namespace coupler::pipelining {

// Which stages (ranks of the pipeline's communicator) keep each tensor, ascending, at least one.
struct StagePlacement {
  std::vector<std::vector<int>> parameters;  // an entry for each of Model::parameters
  std::vector<int> buffers;                  // the stage that changes it
};

// begins: of the model's parts, of which each stage has every stages-th.
StagePlacement placement_of(const LayerList& layers, const strategy::Model& model,
                            const sharding::StageBegins& begins, int stages);

// The ranks that keep one model in pipelines.
struct PipelineComms {
  std::shared_ptr<comm::Communicator> stages;    // of this pipeline, in order
  std::shared_ptr<comm::Communicator> replicas;  // of the ranks with this stage; null: one pipeline
  bool made_up = false;  // in a dry run: the other ranks do not exist, and no tensor has values
};

class PipelineStage : public strategy::Strategy, private strategy::GradientSync {
 public:
  // Gives every rank the values of rank 0. The first stage of each pipeline materializes tensors on
  // meta one at a time and sends them to the ranks that keep them. In a dry run tensors stay as
  // they are, also those of other stages, whose layers find out what those send. broadcast_buffers:
  // whether the first pipeline's buffers replace the others' after each batch. Collective.
  PipelineStage(strategy::Model model, StagePlacement placement, PipelineComms comms,
                bool broadcast_buffers);

  // Call around the backwards of one batch. If sync(), finish_gradients combines the gradients of
  // this batch and of those before it that only accumulated: it sums those of tied parameters over
  // their stages, averages those of several pipelines, and multiplies all by the factor. Otherwise
  // each rank keeps its own. Collective among the stages that share some.
  void begin_gradients();
  void finish_gradients(double factor);

  std::optional<strategy::ParameterPart> part(size_t parameter) override;
  void parameters_changed(strategy::ParameterWriter) override {}
  strategy::GradientSync& gradient_sync() override { return *this; }
  double gradient_norm(const strategy::GradientNorm& which) override;
  at::Tensor whole_gradient(size_t parameter) override;
  at::Tensor whole_parameter(size_t parameter) override;
  void synchronize() override;

 private:
  struct Tied {
    size_t parameter;
    comm::Communicator* comm;  // of the stages that keep it
  };
  void begin_backward(double factor) override;  // throws: the pipeline runs backward itself
  void end_backward(bool) override {}
  void abandon_backward() override {}
  bool keeps(size_t parameter) const;
  void take_values();
  at::Tensor from_owner(size_t parameter, const at::Tensor& own);
  void make_tied_communicators();
  void share_values();
  void average_gradients();
  std::vector<size_t> trained() const;  // the kept parameters that are not frozen
  const at::Tensor& variable(size_t i) const { return model().parameters[i].tensor; }

  const StagePlacement placement_;
  const std::shared_ptr<comm::Communicator> comm_;      // of the stages
  const std::shared_ptr<comm::Communicator> replicas_;  // null: one pipeline
  const bool made_up_;
  const bool broadcast_buffers_;
  std::vector<std::shared_ptr<comm::Communicator>> tied_comms_;
  std::vector<Tied> tied_;
  // Gradients that are combined already, set aside while a batch's are combined with other ranks'.
  std::map<size_t, at::Tensor> earlier_;  // by parameter; undefined: none
};

}  // namespace coupler::pipelining
