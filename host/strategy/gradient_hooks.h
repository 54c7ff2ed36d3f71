// GradientHooks: tells a strategy of each gradient that LibTorch has put into a parameter's .grad,
// on the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class GradientListener {
 public:
  virtual void on_gradient(size_t index) = 0;

 protected:
  ~GradientListener() = default;
};

class GradientHooks {
 public:
  // From now on every gradient of the parameter calls listener->on_gradient(index). Hooks live as
  // long as the parameter, which may outlive the listener: they hold it weakly.
  void add(const at::Tensor& parameter, std::weak_ptr<GradientListener> listener, size_t index);

 private:
  // A parameter only knows its accumulator, where hooks are, weakly: somebody has to keep it.
  std::vector<std::shared_ptr<void>> accumulators_;
};

// Called in a hook: done when the backward that is under way has ended; where that is one within
// another (NestedBackward), when the outermost has.
void after_backward(std::function<void()> done);

// While it lives, on its thread, a backward runs within the one that called us.
class NestedBackward {
 public:
  NestedBackward();
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;
};

// What averaging cannot do with a gradient; name is its parameter's.
void require_dense_gradient(const at::Tensor& gradient, const std::string& name);
[[noreturn]] void throw_second_gradient(const std::string& name);

}  // namespace coupler
