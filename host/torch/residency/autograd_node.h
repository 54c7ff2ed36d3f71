// AutogradNode: LibTorch's owning pointer to a node of autograd's graph: std::shared_ptr, or
// c10::intrusive_ptr since 2.15. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace coupler::residency {

using AutogradNode =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Like `new Node(arguments…)`.
template <class Node, class... Arguments>
AutogradNode make_autograd_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<AutogradNode, std::shared_ptr<torch::autograd::Node>>) {
    // deleteNode is found by argument-dependent lookup, since later versions lack it.
    return AutogradNode(new Node(std::forward<Arguments>(arguments)...),
                        [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace coupler::residency
