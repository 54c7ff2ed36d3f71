// EmptyWeights: while one is alive, models built by its thread take no memory. Their parameters and
// buffers are on the meta device, which has shapes but no values, and record how they were
// initialized, so that they can be materialized later, one by one, with exactly their values.
//
//   Net net{nullptr};
//   {
//     coupler::EmptyWeights empty;
//     net = Net(options);  // 100 billion parameters in milliseconds
//   }
//
// The same seed gives the same weights: materialized values are bit for bit those the constructors
// would have produced without the scope, whatever else was drawn in between. Call
// torch::manual_seed before or inside the scope. Afterwards the default CPU generator is in a state
// that depends only on the seed, so numbers drawn outside differ from a run without it.
//
// Inside the scope
// - every new tensor is on meta; device(kCPU), device(kMeta) and no device mean the same. Another
//   device is an error: weights are moved when they are materialized.
// - torch::tensor({…}) and torch::from_blob(…).clone() work, and so does writing through the data
//   pointer of a tensor fresh from torch::empty (up to 64 KiB, and before any operation on it). Any
//   other use of a data pointer throws LibTorch's own error, "data is not allocated yet".
// - .item(), bool(tensor) and shapes that depend on values work for values that are not random
//   (drop-path rates from a linspace); otherwise they throw coupler::Error naming the operation.
// - tensors from before the scope, and views of them, are unchanged. Results computed from them are
//   recorded and read their values when materialized: do not modify those tensors until then.
//
// Belongs to one thread and must end there; other threads are not affected. Scopes nest; the
// options of the outermost one apply.
//
// InitOnDevice: while one is alive, tensors that its thread creates without naming a device are
// created on that device, so models are built where they will run.
//
//   { coupler::InitOnDevice on({c10::kCUDA, 0}); net = Net(options); }
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// For EmptyWeights and InitOnDevice.
struct EmptyWeightsOptions {
  // Whether buffers are without memory, too. If not, buffers, and parameters that are frozen by
  // then, get their values when the scope ends.
  bool include_buffers = true;
};

class EmptyWeights {
 public:
  // Takes effect on this thread until the scope ends.
  explicit EmptyWeights(const EmptyWeightsOptions& options = {});
  ~EmptyWeights();
  EmptyWeights(const EmptyWeights&) = delete;
  EmptyWeights& operator=(const EmptyWeights&) = delete;
};

// A scope in which tensors are created on a device: Accelerate's init_on_device.
class InitOnDevice {
 public:
  // kMeta acts as EmptyWeights with these options. Tensors created with an explicit device, from
  // C++ values (torch::tensor) or from another tensor are not redirected.
  explicit InitOnDevice(c10::Device device, const EmptyWeightsOptions& options = {});
  ~InitOnDevice();
  InitOnDevice(const InitOnDevice&) = delete;
  InitOnDevice& operator=(const InitOnDevice&) = delete;

 private:
  std::optional<EmptyWeights> empty_;
  std::optional<c10::Device> before_;  // of an enclosing scope
};

}  // namespace coupler

namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace coupler {

// FullParameters: makes the full parameters of a prepared model readable and writable while
// a scope is alive. Outside of it, a backend that shards parameters gathers each one only for the
// operation that needs it, so writes would be lost and pointers would dangle. With a backend that
// does not shard, the scope does nothing and costs nothing.
//
//   {
//     auto scope = coupler::summon_full_parameters(net);
//     torch::nn::init::xavier_uniform_(net->head->weight);  // the same on every rank
//   }
//
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

// UnwrappedModel: a prepared model's module with its full parameters while it is alive; see
// Accelerator::unwrap_model. Used by the training thread.
template <class Module>
class UnwrappedModel {
 public:
  // Created by Accelerator::unwrap_model. The module must outlive it.
  UnwrappedModel(Module& module, FullParameters parameters)
      : module_(&module), parameters_(std::move(parameters)) {}
  // The module.
  Module* operator->() const { return module_; }
  Module& operator*() const { return *module_; }

 private:
  Module* module_;
  FullParameters parameters_;
};

}  // namespace coupler
