// Packed: the form of a parameter whose memory holds less than its values, such as weights of 8 or
// 4 bits, and what the intercept does with one: products with it go to its own kernels, views of it
// stay views, and whatever else takes it gets its values unpacked for that one operation.
// Immutable, [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>

namespace coupler {

struct Home;

class Packed {
 public:
  virtual ~Packed() = default;

  virtual size_t bytes() const = 0;
  // Whether the parameter is [in, out], as GPT-2's are, and not [out, in].
  virtual bool transposed() const = 0;
  // The parameter's values: of its sizes and type, contiguous, on the device that memory is on.
  virtual at::Tensor unpack(const void* memory, c10::Device device) const = 0;
  // x [..., in] times the matrix, and bias [out] where it is defined: [..., out] of x's type. x is
  // floating and on that device. Not recorded by autograd.
  virtual at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias, const void* memory,
                              c10::Device device) const = 0;
};

// Of an operation among whose arguments packed parameters are, resident and pinned, below the
// intercept's key: true where it is done and its results are on the stack; else it is to go on with
// the arguments as they are now. Results refuse to be a part of backward.
bool run_packed(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Throws Error(kUsage) naming the parameter: `action` needs its values in memory as they are.
[[noreturn]] void refuse_packed(const Home& home, const char* action);

}  // namespace coupler
