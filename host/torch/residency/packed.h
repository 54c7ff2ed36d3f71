// Packed: a parameter stored in fewer bits than its values, such as weights of 8 or 4 bits. The
// intercept sends products with it to its own kernels and leaves views of it as views; any other
// operation gets its values, unpacked for that operation only. Immutable, [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>

namespace coupler::residency {

struct ManagedStorage;

class PackedFormat {
 public:
  virtual ~PackedFormat() = default;

  virtual size_t bytes() const = 0;
  // Whether the parameter is [in, out], as in GPT-2, and not [out, in].
  virtual bool transposed() const = 0;
  // The parameter's values with its sizes and type, contiguous, on `device`, where `memory` is.
  virtual at::Tensor unpack(const void* memory, c10::Device device) const = 0;
  // Returns x [..., in] times the matrix, plus bias [out] if it is defined: [..., out] of x's type.
  // x is floating-point and on `device`. Not recorded by autograd.
  virtual at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias, const void* memory,
                              c10::Device device) const = 0;
};

// Handles an operation that has packed parameters among its arguments, resident and pinned, below
// the intercept's key. Returns true if it ran and its results are on the stack; otherwise the
// caller runs it with the arguments now on the stack. Backward passes through the results to other
// arguments; if it reaches a packed parameter, it throws Error(kUsage).
bool run_packed(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Throws Error(kUsage) naming the parameter: `action` needs its unpacked values in memory.
[[noreturn]] void refuse_packed(const ManagedStorage& managed, const char* action);

}  // namespace coupler::residency
