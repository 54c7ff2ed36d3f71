// summon_full_parameters: makes the full parameters of a prepared model readable and writable while
// a scope is alive. Outside of it, a backend that shards parameters gathers each one only for the
// operation that needs it, so writes would be lost and pointers would dangle. With a backend that
// does not shard, the scope does nothing and costs nothing.
//
//   {
//     auto scope = coupler::summon_full_parameters(net);
//     torch::nn::init::xavier_uniform_(net->head->weight);  // the same on every rank
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace coupler {

// Collective: every rank creates and destroys it at the same point, and takes no optimizer step
// meanwhile. All of the model's parameters take memory at once. Throws Error naming the unit and
// the cause if parameters cannot be gathered.
class FullParameters {
 public:
  // writeback: whether writes to the parameters are kept, from each rank its own shard; otherwise
  // they are discarded.
  FullParameters(const std::vector<at::Tensor>& parameters, bool writeback);
  FullParameters(FullParameters&&) noexcept;
  FullParameters& operator=(FullParameters&&) = delete;
  ~FullParameters();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// model: a prepared model, or a module inside one.
template <class Model>
[[nodiscard]] FullParameters summon_full_parameters(Model& model, bool writeback = true) {
  std::vector<at::Tensor> parameters;
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    parameters = model.parameters();
  } else if constexpr (std::is_same_v<Model, torch::jit::Module>) {
    for (const at::Tensor& parameter : model.parameters()) parameters.push_back(parameter);
  } else {
    parameters = model->parameters();
  }
  return FullParameters(parameters, writeback);
}

}  // namespace coupler
