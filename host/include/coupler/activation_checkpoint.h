// activation_checkpoint: a part of a network that does not keep what its backward needs, but
// computes it again when backward comes to it: one more forward for the memory of all of a part's
// intermediate results but its inputs.
//
//   for (auto& block : *blocks) {
//     x = coupler::activation_checkpoint([&](const at::Tensor& in) { return block(in); }, x);
//   }
//
// The function is called now, without recording a graph, and once more in backward, with the same
// random numbers of the CPU's default generator, the same autocast and the same inputs; the second
// time gradients go to its inputs and to every parameter it uses. It runs on the thread that runs
// backward. Under every backend, within accumulation windows and autocast; parts may lie in parts.
// Where no gradients are recorded (torch::NoGradGuard) it is only called.
//
// Inputs on another device than the CPU can be in host memory until backward:
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
  // Whether inputs on other devices are copied to host memory, and back when backward gets there;
  // parameters and buffers of prepared models stay where they are. Unset: as
  // memory.offload_activations says.
  std::optional<bool> offload_to_cpu = std::nullopt;
};

namespace detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// The template's work, on the leaves of inputs and results.
std::vector<at::Tensor> activation_checkpoint(const ActivationCheckpointOptions& options,
                                              TensorFunction function,
                                              const std::vector<at::Tensor>& inputs);

template <class T>
void take_leaves(const T& value, std::vector<at::Tensor>& leaves) {
  if constexpr (is_nested_v<T>) {
    for_each_leaf(value, [&](const at::Tensor& leaf) { leaves.push_back(leaf); });
  }
}

// From leaves[next] on; without leaves: undefined ones.
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
// other copyable values, which are copied. function: takes them, changes none of them in place, and
// returns a nested structure of tensors; it must live, with all it refers to, until backward, and
// compute the same both times. Throws what function throws; in backward Error(kInvalidArgument)
// where its results have other shapes or types the second time, and Error(kUnsupported) for
// torch::autograd::grad and for gradients of gradients.
template <class Function, class... Inputs>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Function function,
                           const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const Inputs&...>>;
  static_assert(is_nested_v<Result>, "the function must return tensors, or a structure of them");
  std::vector<at::Tensor> leaves;
  (detail::take_leaves(inputs, leaves), ...);
  // What is kept between the calls holds no tensors: those are kept where their graph is.
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

// The same without options.
template <class Function, class... Inputs>
auto activation_checkpoint(Function function, const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions(), std::move(function), inputs...);
}

}  // namespace coupler
