// GraphLife: whether autograd's graph of a value still lives: the value itself, something computed
// from it, or a loss. It ends with the last of them, also if the code that held them throws.
// [any-thread]
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace coupler::tensors {

class GraphLife {
 public:
  GraphLife() = default;  // never ends
  // Of a value without a graph, it never ends either.
  explicit GraphLife(const at::Tensor& value) {
    if (!value.requires_grad()) return;
    const auto alive = std::make_shared<char>();
    value.register_hook([alive](const at::Tensor&) {});
    alive_.emplace(alive);
  }

  bool ended() const { return alive_ && alive_->expired(); }

 private:
  std::optional<std::weak_ptr<const char>> alive_;
};

}  // namespace coupler::tensors
