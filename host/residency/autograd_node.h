// AutogradNode: how LibTorch holds the nodes of autograd's graph: in std::shared_ptr, or since 2.15
// in c10::intrusive_ptr. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace coupler {

using AutogradNode =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// As `new Node(arguments…)`.
template <class Node, class... Arguments>
AutogradNode make_autograd_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<AutogradNode, std::shared_ptr<torch::autograd::Node>>) {
    // deleteNode is found by its argument, since later versions have none.
    return AutogradNode(new Node(std::forward<Arguments>(arguments)...),
                        [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace coupler
