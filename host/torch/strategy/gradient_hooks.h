// GradientHooks: notifies a listener of each gradient that LibTorch has put into a parameter's
// .grad. Used by the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler::strategy {

class GradientListener {
 public:
  virtual void on_gradient(size_t index) = 0;

 protected:
  ~GradientListener() = default;
};

class GradientHooks {
 public:
  // Makes every later gradient of the parameter call listener->on_gradient(index). Hooks live as
  // long as the parameter, which may outlive the listener, so they hold it weakly.
  void add(const at::Tensor& parameter, std::weak_ptr<GradientListener> listener, size_t index);

 private:
  // Parameters hold their accumulators, which own the hooks, only weakly; these keep them alive.
  std::vector<std::shared_ptr<void>> accumulators_;
};

// Call from a hook: runs `done` when the current backward has ended; if it is nested in another
// (NestedBackward), when the outermost has.
void after_backward(std::function<void()> done);

// While it lives, a backward on its thread is nested in the one that called us.
class NestedBackward {
 public:
  NestedBackward();
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;
};

// Throw Error(kUnsupported) for gradients that cannot be averaged; name: the parameter's.
void require_dense_gradient(const at::Tensor& gradient, const std::string& name);
[[noreturn]] void throw_second_gradient(const std::string& name);

}  // namespace coupler::strategy
