// What the calling thread's linear layers multiply in besides LibTorch's own autocast, and the way
// out of both. The layers themselves are in precision/fp8_linear.h. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace coupler::tensors {

// Above autograd, autocast and the intercept of sharded parameters, so that all of them see the
// operations that replace others: fp8 layers here, attention in replaced_attention.h, dropout in
// replaced_dropout.h, and both if a rank draws for them by itself (divided_values.h).
constexpr c10::DispatchKey kReplacedOpsKey = c10::DispatchKey::PreDispatch;
enum class ReplacedOps : uint8_t { kLinear = 1, kAttention = 2, kDropout = 4, kOwnDraws = 8 };

// The key of code that records forward (activations/forward_recorder.h): below the one above, and
// above the intercept.
constexpr c10::DispatchKey kRecordedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
// Whether the calling thread's operations go to that code. It has to see one operation, not those
// that the operation becomes at the key above.
bool goes_to_recorder();

// Whether the calling thread's operations of this kind go to their replacements.
void use_replaced_ops(ReplacedOps ops, bool use);

// For code at kRecordedKey that calls the operation it was called for: while this lives, a call
// that a replacement let through to be recorded goes to the replacement again. is_replaced: whether
// one replaces this call.
class ReplacedOpAgain {
 public:
  explicit ReplacedOpAgain(bool is_replaced);
  ~ReplacedOpAgain();
  ReplacedOpAgain(const ReplacedOpAgain&) = delete;
  ReplacedOpAgain& operator=(const ReplacedOpAgain&) = delete;

 private:
  const bool again_;
};

// Makes the calling thread's linear layers multiply in fp8, with gradients in this type (e5m2 or
// e4m3fn), and return bf16. Empty restores LibTorch's layers. Returns the previous setting.
std::optional<c10::ScalarType> set_fp8_linear(std::optional<c10::ScalarType> gradients);
std::optional<c10::ScalarType> fp8_linear();

// For hooks of a weight [out, in], which keep its layer from being replaced as a whole: the layer's
// product with this input, plus a bias if it is defined, in fp8. Empty if the calling thread's
// layers do not multiply in fp8, or if sizes or types do not fit.
std::optional<at::Tensor> fp8_product(const at::Tensor& input, const at::Tensor& weight,
                                      const at::Tensor& bias);
// By precision/fp8_linear.cc, before main.
using Fp8Product = std::optional<at::Tensor> (*)(const at::Tensor& input, const at::Tensor& weight,
                                                 const at::Tensor& bias);
void set_fp8_product(Fp8Product product);

// While it lives, the calling thread computes in its operands' types, in whatever scope it is.
std::shared_ptr<void> outside_autocast();

}  // namespace coupler::tensors
