// activation_checkpoint: runs a part of a network without keeping its activations and recomputes
// them during backward. It trades one extra forward for the memory of all intermediate results of
// the part except its inputs.
//
//   for (auto& block : *blocks) {
//     x = coupler::activation_checkpoint([&](const at::Tensor& in) { return block(in); }, x);
//   }
//
// The function is called immediately without recording a graph, and again in backward, with the
// same random numbers from the CPU's default generator, the same autocast state and the same
// inputs. The second call produces gradients for its inputs and for every parameter it uses, and
// runs on the thread that runs backward. Works under every backend, within accumulation windows and
// autocast, and may be nested. If gradients are not recorded (torch::NoGradGuard), the function is
// only called.
//
// Inputs on a device other than the CPU can be kept in host memory until backward:
//
//   x = coupler::activation_checkpoint(
//       coupler::ActivationCheckpointOptions{.offload_to_cpu = true}, function, x);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/nested.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// For activation_checkpoint.
struct ActivationCheckpointOptions {
  // Whether inputs on other devices are copied to host memory, and back when backward needs them.
  // Parameters and buffers of prepared models are not moved. Unset: memory.offload_activations
  // decides.
  std::optional<bool> offload_to_cpu = std::nullopt;
};

namespace detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Implements the template below on the leaves of inputs and results.
std::vector<at::Tensor> activation_checkpoint(const ActivationCheckpointOptions& options,
                                              TensorFunction function,
                                              const std::vector<at::Tensor>& inputs);

template <class T>
void take_leaves(const T& value, std::vector<at::Tensor>& leaves) {
  if constexpr (is_nested_v<T>) {
    for_each_leaf(value, [&](const at::Tensor& leaf) { leaves.push_back(leaf); });
  }
}

// Assigns leaves starting at leaves[next]; without leaves, undefined tensors.
template <class T>
void put_leaves(T& value, const std::vector<at::Tensor>* leaves, size_t& next) {
  if constexpr (is_nested_v<T>) {
    for_each_leaf(value, [&](at::Tensor& leaf) {
      leaf = leaves == nullptr ? at::Tensor() : (*leaves)[next++];
    });
  }
}

}  // namespace detail

// inputs: tensors and nested structures of them (nested.h), whose gradients are computed, and any
// other copyable values, which are copied. function: takes the inputs, must not modify them in
// place, and returns a nested structure of tensors. It and everything it refers to must live until
// backward, and both calls must compute the same. Throws what function throws. In backward, throws
// Error(kInvalidArgument) if the second call's results have other shapes or dtypes, and
// Error(kUnsupported) for torch::autograd::grad and for gradients of gradients.
template <class Function, class... Inputs>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Function function,
                           const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const Inputs&...>>;
  static_assert(is_nested_v<Result>, "the function must return tensors, or a structure of them");
  std::vector<at::Tensor> leaves;
  (detail::take_leaves(inputs, leaves), ...);
  // The state kept between the calls holds no tensors; tensors are kept with their graph.
  std::tuple<Inputs...> arguments(inputs...);
  size_t none = 0;
  std::apply([&](auto&... each) { (detail::put_leaves(each, nullptr, none), ...); }, arguments);
  const auto result = std::make_shared<std::optional<Result>>();
  auto run = [function = std::move(function), arguments = std::move(arguments),
              result](const std::vector<at::Tensor>& values) mutable {
    auto own = arguments;
    size_t next = 0;
    std::apply([&](auto&... each) { (detail::put_leaves(each, &values, next), ...); }, own);
    Result computed = std::apply([&](const auto&... each) -> Result { return function(each...); },
                                 std::as_const(own));
    std::vector<at::Tensor> outputs;
    detail::take_leaves(computed, outputs);
    if (!*result) {
      size_t all = 0;
      detail::put_leaves(computed, nullptr, all);
      *result = std::move(computed);
    }
    return outputs;
  };
  auto outputs = detail::activation_checkpoint(options, std::move(run), leaves);
  return detail::with_leaves(**result, std::move(outputs));
}

// Uses default options.
template <class Function, class... Inputs>
auto activation_checkpoint(Function function, const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions(), std::move(function), inputs...);
}

}  // namespace coupler
