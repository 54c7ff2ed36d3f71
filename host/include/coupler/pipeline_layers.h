// PipelineLayers: how a model exposes its chain of layers, so that a pipeline over ranks can split
// it (pipeline_parallel.h). A torch::nn::Sequential needs nothing: its elements are the layers; an
// element that is itself a Sequential or has PipelineLayers contributes its own. Any other model
// derives from PipelineLayers as a second base and lists them:
//
//   struct NetImpl : torch::nn::Module, coupler::PipelineLayers {
//     std::vector<coupler::PipelineLayer> pipeline_layers() override {
//       return {{"in", {in.ptr()}, [this](const at::Tensor& x) { return in(x); }},
//               {"out", {out.ptr()}, [this](const at::Tensor& x) { return out(torch::relu(x)); }}};
//     }
//
// Run in sequence, they must compute what forward does; forward may be written as this chain.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// One layer of the chain. It takes the previous layer's output (the first layer: the batch's
// inputs) and uses only the parameters of its modules. It passes on tensors only; anything later
// layers need must pass through every layer in between. Runs on the training thread.
struct PipelineLayer {
  // The tensors passed between layers; the modules whose parameters a layer uses.
  using Values = std::vector<at::Tensor>;
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  // compute: at::Tensor(const at::Tensor&), or std::vector<at::Tensor>(const
  // std::vector<at::Tensor>&) if several tensors pass between layers. modules: the modules whose
  // parameters it uses, including submodules; a module in several layers is tied.
  template <class Compute>
  PipelineLayer(std::string layer_name, Modules layer_modules, Compute compute)
      : name(std::move(layer_name)), modules(std::move(layer_modules)) {
    if constexpr (std::is_invocable_r_v<at::Tensor, Compute&, const at::Tensor&>) {
      one_tensor = std::move(compute);
    } else {
      all_tensors = std::move(compute);
    }
  }

  std::string name;  // used by split points; by convention the path of its first module
  Modules modules;   // whose parameters it uses
  // The layer's computation; exactly one of the two is set.
  std::function<at::Tensor(const at::Tensor&)> one_tensor;
  std::function<Values(const Values&)> all_tensors;
};

// Base class of modules that list their own layers.
class PipelineLayers {
 public:
  virtual ~PipelineLayers() = default;
  // Returns the layers in order, with unique names. Called once, by prepare_pipeline; anything the
  // layers capture must live as long as the module.
  virtual std::vector<PipelineLayer> pipeline_layers() = 0;
};

}  // namespace coupler
