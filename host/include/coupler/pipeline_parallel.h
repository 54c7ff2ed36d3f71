// A model's layers on several processes, all at work at once: each process keeps and computes a
// part of the chain of layers (pipeline_layers.h), and the micro-batches of a batch pass from one
// to the next. For models larger than one process's memory, over any transport (docs/pipelines.md).
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
// Process r of the job is stage r. The first reads the inputs, the last the targets; what the
// others pass is not looked at. Every function is collective and belongs to the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/accelerator.h>
#include <coupler/call_site.h>
#include <coupler/pipeline_layers.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// Where each process's part begins: "auto", or the names of the layers at which the second, third,
// … begins, one fewer than there are processes.
class SplitPoints {
 public:
  // Implicit, so that options can be written down as {.split_points = "auto"}.
  SplitPoints(const char* name) : names_{name} {}
  SplitPoints(std::string name) : names_{std::move(name)} {}
  SplitPoints(std::initializer_list<std::string> names) : names_(names) {}
  SplitPoints(std::vector<std::string> names) : names_(std::move(names)) {}
  bool is_auto() const { return names_.size() == 1 && names_[0] == "auto"; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// What the loss of a micro-batch is of its rows.
enum class LossReduction {
  kMean,  // counts as its share of the batch's rows
  kSum,   // counts whole
};

// For prepare_pipeline.
struct PipelineOptions {
  // "auto" makes the most expensive part as cheap as can be: by the layers' times where there are
  // example_inputs, else by the bytes of their parameters.
  SplitPoints split_points = "auto";
  // How many parts a batch is cut into along dimension 0; 0: as many as there are processes. More
  // leave less time without work, (processes - 1) / (micro_batches + processes - 1) of it, and
  // smaller pieces to compute. Where the rows do not divide, the first ones have one more.
  int64_t micro_batches = 0;
  // Whether forward's output is on every process, not only on the last.
  bool gather_output = false;
  LossReduction loss_reduction = LossReduction::kMean;
  // The inputs of one micro-batch, for "auto": process 0 runs every layer on them a few times, and
  // needs the whole model in memory for that.
  std::vector<at::Tensor> example_inputs = {};
};

// A model whose layers are on several processes; what prepare_pipeline gives. Movable. Used by the
// thread that trains. Every call but the accessors is collective.
class PipelineParallel {
 public:
  // The loss of a micro-batch: one number, with a gradient.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  // The same of a model that gives several tensors.
  using LossOfAll = std::function<at::Tensor(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& targets)>;

  // prepare_pipeline, of the module itself.
  static PipelineParallel make(Accelerator& accelerator, torch::nn::Module& module,
                               const PipelineOptions& options);
  PipelineParallel(PipelineParallel&&) noexcept;
  PipelineParallel& operator=(PipelineParallel&&) noexcept;
  ~PipelineParallel();

  // Which part this process has, from 0, of how many.
  int stage() const;
  int stages() const;
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() == stages() - 1; }
  const std::vector<std::string>& layers() const;        // of this process, in order
  const std::vector<std::string>& split_points() const;  // as named ones would be

  // The model's output for a batch [rows, …] of at least micro_batches rows, without gradients: on
  // the last process, or everywhere with gather_output; else undefined. Error(kInvalidArgument) on
  // every process where a batch does not fit.
  at::Tensor forward(const at::Tensor& input, CallSite site = {});
  // Of models whose first layer takes, or last layer gives, several tensors.
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs, CallSite site = {});

  // Forward and backward of a batch: the gradients are added to those of this process's parameters,
  // and are those of the whole batch's loss, which is returned on every process. target: as many
  // rows as the input has. loss: of one micro-batch, called on the last process only; one number.
  // Within accelerator.autocast() layers and loss compute in its type.
  double train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss,
                    CallSite site = {});
  // The same with several inputs or targets.
  double train_step_all(const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& targets, const LossOfAll& loss,
                        CallSite site = {});

 private:
  struct State;
  explicit PipelineParallel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Divides a model (module holder, shared_ptr to a module, or module) over all processes; it is
// prepared by that. The parameters of other processes' layers are left without memory, and get no
// values where the model was made in EmptyWeights. Afterwards prepare makes an optimizer of the
// model's step this process's parameters; clip_grad_norm, gradient, save_model, save_state and
// load_state know the whole model. A weight that layers of several processes use is on each of
// them, and its gradients are summed. The Accelerator outlives the result. Collective.
//
// Throws Error where the model has no chain of layers; where split points are too many, too few or
// no layers of it, naming those that are; where the backend divides parameters itself, or another
// option is set that a pipeline does not know.
template <class Model>
PipelineParallel prepare_pipeline(Accelerator& accelerator, Model& model,
                                  const PipelineOptions& options = {}, CallSite = {}) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    return PipelineParallel::make(accelerator, model, options);
  } else {
    return PipelineParallel::make(accelerator, *model, options);
  }
}

}  // namespace coupler
