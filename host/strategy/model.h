// Model: what strategies need to know of a user's model, whatever its kind (torch::nn::Module,
// TorchScript module): its modules, parameters and buffers in order of registration. A snapshot
// made at prepare; the tensors are the user's own variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::jit {
struct Module;
}
namespace torch::nn {
class Module;
}

namespace coupler {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ModelModule {
  std::string name;  // dotted path; "" the model itself
  std::string type;
  int64_t parent = -1;
};

struct ModelParameter {
  std::string name;  // dotted path
  at::Tensor tensor;
  size_t module = 0;
};

struct Model {
  const void* identity = nullptr;  // equal for the same model, however it is passed
  std::string name;                // its type
  std::vector<ModelModule> modules;
  std::vector<ModelParameter> parameters;  // a tied one once, under its first name
  NamedTensors buffers;
  // The other names of tied parameters and buffers, each with its first.
  std::vector<std::pair<std::string, std::string>> aliases;
  std::shared_ptr<void> keep;  // so that identity stays its own; null for a module on the stack
};

const void* identity_of(const torch::nn::Module& module);
const void* identity_of(const torch::jit::Module& module);

// Throws Error where there is no parameter, or one is not in host memory.
Model describe(torch::nn::Module& module);
Model describe(const torch::jit::Module& module);

}  // namespace coupler
