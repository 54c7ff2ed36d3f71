// ParameterHook: code that runs around every operation on a parameter and its views, whatever
// module, thread or TorchScript function calls it. The parameter gets the intercept's key
// (intercept.h), whose fallback calls the hook; operations on other tensors do not notice.
//
// Adding and removing must not run at the same time as operations on these parameters. Hooks are
// called on the thread of the operation, possibly on several at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <memory>
#include <optional>

namespace coupler::residency {

// Where a hook runs if an operation has several: from the outside to the inside, those of one place
// in the order in which they were added.
enum class HookPlace {
  kModule,  // sees a module's inputs and results as the program does
  kResult,  // changes results
  kValues,  // changes the parameter's values, as the operation gets them
};

class ParameterHook {
 public:
  explicit ParameterHook(HookPlace place);
  virtual ~ParameterHook();
  ParameterHook(const ParameterHook&) = delete;
  ParameterHook& operator=(const ParameterHook&) = delete;

  // Called once for an operation that has one or more of this hook's parameters among its
  // arguments, which are on the stack. `run` runs the operation, which replaces them by its
  // results; call it once, or put the results there instead. Operations that a hook calls itself
  // are dispatched from the start.
  virtual void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                      const std::function<void()>& run) = 0;
  HookPlace place() const { return place_; }

 private:
  const HookPlace place_;
};

// Hooks of one operation run inside each other. The hook is borrowed: it ends with its owner. Views
// and aliases are recognized by autograd's base or by their memory.
void add_hook(const at::Tensor& parameter, const std::shared_ptr<ParameterHook>& hook);

// Whether an operation on this parameter, or a view of it, calls a hook.
bool has_hooks(const at::Tensor& tensor);

// Whether `run` of such a hook of the parameter calls others before the operation.
bool has_hooks_inside(const at::Tensor& tensor, const ParameterHook& hook);

// Puts the key back on all parameters with hooks. Call it after parameters got other memory
// (set_data, give_value), which takes the key away; a hook would otherwise not be called any more.
void restore_hooks();

// For the intercept. Calls the hooks of the arguments around `run`, or only `run`.
void run_with_hooks(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                    const std::function<void()>& run);
bool any_hooks();  // in this process; cheap

// Whether this thread runs LibTorch's own backward, whose operations also use the parameters, and,
// for gradients of gradients, in the same way as forward.
bool in_backward();

// While it lives, what its thread runs is forward, even if backward needs it: a recomputed part.
class ForwardAgain {
 public:
  ForwardAgain();
  ~ForwardAgain();
  ForwardAgain(const ForwardAgain&) = delete;
  ForwardAgain& operator=(const ForwardAgain&) = delete;

 private:
  const bool before_;
};

// Whether a tensor is the parameter, or a view or an alias of it.
bool shows(const at::Tensor& tensor, const at::Tensor& parameter);

// How a tensor shows a whole matrix, the parameter it is or is a view of: as stored, or transposed.
// Unset for another matrix, and for part of one.
enum class MatrixView { kStored, kTransposed };
std::optional<MatrixView> view_of(const at::Tensor& tensor, const at::Tensor& parameter);

}  // namespace coupler::residency
