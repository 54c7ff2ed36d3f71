// Pipeline parallelism: each process keeps and computes a part of a model's chain of layers
// (pipeline_layers.h), and the micro-batches of a batch flow from one process to the next, so all
// processes work at once. For models larger than one process's memory, over any transport
// (docs/pipelines.md).
//
//   auto pipeline = coupler::prepare_pipeline(accelerator, model, {.micro_batches = 8});
//   auto opt = accelerator.prepare(optimizer);
//   for (auto& batch : batches) {                       // the same batches on every process
//     const double loss = pipeline.train_step(batch.data, batch.target, cross_entropy);
//     accelerator.clip_grad_norm(model, 1.0);
//     opt.step();
//     opt.zero_grad();
//   }
//
// Rank r is stage r. The first stage reads the inputs, the last the targets; the values passed by
// other ranks are ignored. Every function is collective and belongs to the training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/pipeline_layers.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// Where each stage starts: "auto", or the names of the layers at which the second, third, … stage
// starts, one fewer than there are processes; with virtual stages, one fewer than there are parts.
class SplitPoints {
 public:
  // Implicit, so that options can be written as {.split_points = "auto"}.
  SplitPoints(const char* name) : names_{name} {}
  SplitPoints(std::string name) : names_{std::move(name)} {}
  SplitPoints(std::initializer_list<std::string> names) : names_(names) {}
  SplitPoints(std::vector<std::string> names) : names_(std::move(names)) {}
  bool is_auto() const { return names_.size() == 1 && names_[0] == "auto"; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// How the loss of a micro-batch reduces over its rows.
enum class LossReduction {
  kMean,  // weighted by its share of the batch's rows
  kSum,   // added without weighting
};

// For prepare_pipeline.
struct PipelineOptions {
  // "auto" minimizes the cost of the most expensive stage: by measured layer times if there are
  // example_inputs, otherwise by the bytes of parameters.
  SplitPoints split_points = "auto";
  // Number of parts into which a batch is split along dimension 0; 0: the number of processes. More
  // of them shrink the bubble, (processes - 1) / (micro_batches + processes - 1) of the time, but
  // make each computation smaller. If the rows do not divide evenly, the first parts have one more.
  int64_t micro_batches = 0;
  // Number of parts of the model that each process has: with 2, of 8 parts over 4 processes the
  // first one has the first and the fifth. More of them shrink the bubble to a virtual_stages-th,
  // but more micro-batches are in memory at a time, and more activations are sent. micro_batches is
  // then a multiple of the number of processes. One process ignores it.
  int virtual_stages = 1;
  // Whether every process gets forward's output, not only the last.
  bool gather_output = false;
  LossReduction loss_reduction = LossReduction::kMean;
  // The inputs of one micro-batch, for "auto": rank 0 runs every layer on them a few times and
  // needs the whole model in memory for that.
  std::vector<at::Tensor> example_inputs = {};
};

// A model split across processes, returned by prepare_pipeline. Movable. Used by the training
// thread. Every call except the accessors is collective.
class PipelineParallel {
 public:
  // The loss of a micro-batch: a one-element tensor with a gradient.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  // The same for a model with several outputs.
  using LossOfAll = std::function<at::Tensor(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& targets)>;

  // Implements prepare_pipeline for the module itself.
  static PipelineParallel make(Accelerator& accelerator, torch::nn::Module& module,
                               const PipelineOptions& options);
  PipelineParallel(PipelineParallel&&) noexcept;
  PipelineParallel& operator=(PipelineParallel&&) noexcept;
  ~PipelineParallel();

  // The stage of this process, from 0, and the number of stages.
  int stage() const;
  int stages() const;
  // The parts of the model that this process has.
  int virtual_stages() const;
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() == stages() - 1; }
  const std::vector<std::string>& layers() const;        // of this process, in order
  const std::vector<std::string>& split_points() const;  // by name, also with "auto"

  // Returns the model's output for a batch [rows, …] of at least micro_batches rows, without
  // gradients: on the last process, or on every process with gather_output; otherwise undefined.
  // Throws Error(kInvalidArgument) on every process if a batch does not fit.
  at::Tensor forward(const at::Tensor& input, CallSite site = {});
  // For models whose first layer takes, or last layer returns, several tensors.
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs, CallSite site = {});

  // Runs forward and backward of a batch, adds the gradients of the whole batch's loss to those of
  // this process's parameters, and returns that loss on every process. target: has as many rows as
  // the input. loss: computes the loss of one micro-batch, a single number; called on the last
  // process only. Within accelerator.autocast(), layers and loss compute in its dtype. Within
  // accelerator.accumulate(model), gradients count and synchronize as accelerator.backward's do.
  double train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss,
                    CallSite site = {});
  // The same for several inputs or targets.
  double train_step_all(const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& targets, const LossOfAll& loss,
                        CallSite site = {});

 private:
  struct State;
  explicit PipelineParallel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Splits a model (module holder, shared_ptr to a module, or module) across all processes and
// prepares it. Parameters of other processes' layers take no memory, and are not materialized if
// the model was built under EmptyWeights. A prepared optimizer of the model then updates this
// process's parameters; clip_grad_norm, gradient, save_model, save_state and load_state cover the
// whole model. A weight used by layers of several processes is on each of them, and its gradients
// are summed. The Accelerator must outlive the result. Collective.
//
// Throws Error if the model has no chain of layers; if there are too many or too few split points,
// or one is not a layer (the error lists the layers); if the backend shards parameters itself, or
// if an option is set that a pipeline does not support.
template <class Model>
PipelineParallel prepare_pipeline(Accelerator& accelerator, Model& model,
                                  const PipelineOptions& options = {}, CallSite = {}) {
  return PipelineParallel::make(accelerator, detail::module_of(model), options);
}

}  // namespace coupler
