// Model: what strategies need to know about a user's model, whatever its kind (torch::nn::Module,
// TorchScript module): its modules, parameters and buffers in order of registration. A snapshot
// made at prepare; the tensors are the user's own variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/preflight.h"
#include "sharding/model_division.h"

namespace torch::jit {

struct Module;

}  // namespace torch::jit

namespace torch::nn {

class Module;

}  // namespace torch::nn

namespace coupler::strategy {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// State that a rank carries from step to step in addition to a model's parameters.
struct StateTensor {
  std::string name;   // depends only on model and settings; other models may use it, too
  at::Tensor tensor;  // the memory itself, which a load writes to
  bool scales_with_loss = false;  // whether a change of the loss's scale multiplies it
};

struct ModelModule {
  std::string name;  // dotted path; "" for the model itself
  std::string type;
  int64_t parent = -1;
};

using sharding::ParameterDivision;

struct ModelParameter {
  std::string name;  // dotted path
  at::Tensor tensor;
  size_t module = 0;
  std::optional<ParameterDivision> division = {};  // the tensor is this rank's part
  // The ranks that have the other parts; null: it is whole.
  std::shared_ptr<comm::Communicator> parts = {};
  // The ranks with the same part that average its gradients; null: those that average the
  // gradients of whole parameters.
  std::shared_ptr<comm::Communicator> averaging = {};

  std::vector<int64_t> whole_sizes() const {
    return division ? division->sizes : tensor.sizes().vec();
  }
  // The division of its elements; of one rank if it is not divided.
  sharding::Division elements() const {
    return division ? division->elements : sharding::Division();
  }
};

struct Model {
  const void* identity = nullptr;  // equal for the same model, however it is passed
  std::string name;                // its type
  std::vector<ModelModule> modules;
  std::vector<ModelParameter> parameters;  // tied parameters once, under their first name
  NamedTensors buffers;
  // Frozen parameters that a DispatchedModel keeps: quantized, or placed by a device map. Every
  // rank has all of them, and no strategy moves, sends or saves them; see set_fixed_aside.
  NamedTensors fixed;
  // Where it is trained. At prepare its tensors are there, in host memory or on meta; the strategy
  // moves them there.
  c10::Device device = c10::kCPU;
  // The other names of tied parameters and buffers, each with its first name.
  std::vector<std::pair<std::string, std::string>> aliases;
  std::shared_ptr<void> keep;  // keeps identity unique; null for a module on the stack
  // The ranks that layers are divided over (tensor_parallel/divide.h), and what runs these layers;
  // null: each rank has whole layers.
  std::shared_ptr<comm::Communicator> tensor_comm = nullptr;
  std::vector<std::shared_ptr<void>> layer_hooks = {};
};

// The types of one model's parameters.
struct ModelTypes {
  std::set<at::ScalarType> stored;    // and updated by the optimizer
  std::set<at::ScalarType> computed;  // as operations see them, outside autocast
  std::set<at::ScalarType> reduced;   // of gradients between ranks
};

// Those of a model that computes and reduces in the types of its parameters.
ModelTypes types_of(const Model& model);

const void* identity_of(const torch::nn::Module& module);
const void* identity_of(const torch::jit::Module& module);

// Throws Error if the module has no parameters, or if one is neither on the device, in host memory
// nor on meta.
Model describe(torch::nn::Module& module, c10::Device device = c10::kCPU);
Model describe(const torch::jit::Module& module, c10::Device device = c10::kCPU);

// Moves the frozen parameters that a DispatchedModel keeps from `parameters` to `fixed`. Throws
// Error(kUsage) naming one that requires gradients.
void set_fixed_aside(Model& model);

// Moves a variable's values and gradient to the device. It keeps its identity. Not for meta.
void move_to(const at::Tensor& variable, c10::Device device);

// What ranks compare before a model's values move between them. Otherwise the first operation would
// find a difference, without names.

comm::SharedSettings shared_settings_of(const Model& model);

// What strategies share in gradient clipping. Pure functions.

// Which norm of which gradients.
struct GradientNorm {
  double type = 2;  // p of the p-norm, above 0; infinity: the largest absolute value
  std::optional<std::set<size_t>> parameters = {};  // indices in Model::parameters; empty: all

  bool covers(size_t parameter) const { return !parameters || parameters->count(parameter) != 0; }
  bool is_maximum() const { return std::isinf(type); }
  // The p-th power of a norm, or the maximum itself; norm_of undoes it. That of several parts is
  // the `together` of theirs.
  double power_of(double norm) const { return is_maximum() ? norm : std::pow(norm, type); }
  double power_of(const std::vector<at::Tensor>& tensors) const;
  double norm_of(double power) const { return is_maximum() ? power : std::pow(power, 1 / type); }
  double together(double a, double b) const { return is_maximum() ? std::max(a, b) : a + b; }
};

// Throws the Error for a norm that is not finite. parameter: the first with a gradient that is not
// finite, an index into model.parameters; their number if every element is finite.
[[noreturn]] void throw_not_finite(double norm, size_t parameter, const Model& model);

}  // namespace coupler::strategy
