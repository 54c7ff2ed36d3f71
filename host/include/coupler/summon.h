// summon_full_parameters: parameters of a prepared model whole and writable, for as long as a scope
// lives. Outside of it a backend that divides parameters over ranks gathers each for the operation
// that needs it, so that writes would be lost and pointers would dangle; with a backend that keeps
// parameters whole the scope does nothing, and costs nothing.
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

// Collective: every rank makes and ends it at the same point, and takes no optimizer step
// meanwhile. All of the model's parameters take memory at once. Throws Error naming the unit and
// the cause where parameters cannot be gathered.
class FullParameters {
 public:
  // writeback: what is written to the parameters stays, each rank's own part of it; else it is
  // lost.
  FullParameters(const std::vector<at::Tensor>& parameters, bool writeback);
  FullParameters(FullParameters&&) noexcept;
  FullParameters& operator=(FullParameters&&) = delete;
  ~FullParameters();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// model: a prepared model, or a module inside of one.
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
