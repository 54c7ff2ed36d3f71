// How a model tells its chain of layers, so that a pipeline over ranks can divide it
// (pipeline_parallel.h). A torch::nn::Sequential needs nothing: its elements are the layers, and
// those of an element that is a Sequential or has PipelineLayers itself. Any other model has
// PipelineLayers as a second base and lists them:
//
//   struct NetImpl : torch::nn::Module, coupler::PipelineLayers {
//     std::vector<coupler::PipelineLayer> pipeline_layers() override {
//       return {{"in", {in.ptr()}, [this](const at::Tensor& x) { return in(x); }},
//               {"out", {out.ptr()}, [this](const at::Tensor& x) { return out(torch::relu(x)); }}};
//     }
//
// One after the other they must compute what forward does: forward may be written as this chain.
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

// One link of the chain: takes what the layer before it gave (the first: the batch's inputs) and
// computes with the parameters of its modules, and no others. All it hands on are tensors; whatever
// later layers need passes through each layer on the way. Runs on the thread that trains.
struct PipelineLayer {
  // Of the tensors that go from layer to layer; the modules whose parameters a layer uses.
  using Values = std::vector<at::Tensor>;
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  // compute: at::Tensor(const at::Tensor&), or std::vector<at::Tensor>(const
  // std::vector<at::Tensor>&) where more than one tensor goes from layer to layer. modules: whose
  // parameters it uses, those of their submodules included; one in several layers is tied.
  template <class Compute>
  PipelineLayer(std::string layer_name, Modules layer_modules, Compute compute)
      : name(std::move(layer_name)), modules(std::move(layer_modules)) {
    if constexpr (std::is_invocable_r_v<at::Tensor, Compute&, const at::Tensor&>) {
      one_tensor = std::move(compute);
    } else {
      all_tensors = std::move(compute);
    }
  }

  std::string name;  // what split points call it; by custom the path of its first module
  Modules modules;   // whose parameters it uses
  // What it computes: one of the two is set.
  std::function<at::Tensor(const at::Tensor&)> one_tensor;
  std::function<Values(const Values&)> all_tensors;
};

// Derived from by modules that say themselves what their layers are.
class PipelineLayers {
 public:
  virtual ~PipelineLayers() = default;
  // In order, with names that differ. Called once, by prepare_pipeline; what the layers capture
  // lives as long as the module.
  virtual std::vector<PipelineLayer> pipeline_layers() = 0;
};

}  // namespace coupler
