// Hooks before and after layers of an unmodified model, and in their backward, as
// register_forward_pre_hook, register_forward_hook and register_full_backward_hook do in Python.
//
//   auto hooks = coupler::add_hooks(*model, "blocks.*.fc1",
//                                   {.post_forward = [](const std::string& layer, at::Tensor& y) {
//                                     std::cout << layer << " " << y.abs().max() << "\n";
//                                   }});
//
// A module's forward is an ordinary C++ function, whose calls cannot be intercepted. Operations on
// its parameters can. So hooks are for LibTorch's layers that have parameters and are one operation
// (Linear: product and bias): Linear, Conv1d to Conv3d, ConvTranspose1d to ConvTranspose3d,
// Embedding, LayerNorm, GroupNorm, BatchNorm1d to BatchNorm3d, InstanceNorm1d to InstanceNorm3d,
// PReLU. They run for that operation, whether forward or torch::linear(x, layer->weight) runs it.
// Containers, your own modules, and modules without parameters (ReLU, Dropout) cannot have hooks:
// call your code in their forward.
//
// add_hooks is called by the thread that owns the model, not while it computes. Hooks run on the
// thread of the operation; activation checkpointing runs them again in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// What runs around a layer; each may be empty. layer: its dotted name. A hook may assign another
// tensor, but must not change its tensor in place. What it throws leaves forward or backward.
struct LayerHooks {
  // Before the operation. input: of any dtype and shape that the layer takes; for Embedding the
  // indices, for convolutions with a padding mode other than zeros the padded input. If the
  // operation then fails, forward throws Error(kUsage) naming the layer and this hook.
  std::function<void(const std::string& layer, at::Tensor& input)> pre_forward;
  // After it. Must keep shape and dtype; otherwise forward throws Error(kUsage) naming the layer.
  std::function<void(const std::string& layer, at::Tensor& output)> post_forward;
  // In backward, with the gradient of the output; called once for each use of the layer whose
  // output needs a gradient. Must keep shape and dtype.
  std::function<void(const std::string& layer, at::Tensor& gradient)> backward;
};

namespace adapters {
class LayerHook;
}

// Keeps hooks in place: they end with this object, or with remove(). Movable.
class HookHandle {
 public:
  // Made by add_hooks.
  explicit HookHandle(std::vector<std::shared_ptr<adapters::LayerHook>> hooks)
      : hooks_(std::move(hooks)) {}

  // The dotted names of the layers with these hooks, in order of registration.
  std::vector<std::string> layers() const;
  void remove() { hooks_.clear(); }

 private:
  std::vector<std::shared_ptr<adapters::LayerHook>> hooks_;
};

// Adds hooks to all layers whose names match the pattern (* matches any characters except dots, **
// any, as in memory.activation_checkpointing). Several hooks of a layer run like nested calls:
// pre_forward in the order in which they were added, post_forward in the reverse order. Products of
// coupler::lora belong to the layer's output. Call it before or after prepare.
//
// Throws Error(kInvalidArgument) if the pattern matches no module, or one that cannot have hooks,
// saying why.
[[nodiscard]] HookHandle add_hooks(torch::nn::Module& model, const std::string& pattern,
                                   const LayerHooks& hooks);

// The same for module holders.
template <class Holder>
auto add_hooks(Holder& model, const std::string& pattern, const LayerHooks& hooks)
    -> decltype(add_hooks(*model, pattern, hooks)) {
  return add_hooks(*model, pattern, hooks);
}

}  // namespace coupler
