// What the calling thread's linear layers multiply in besides LibTorch's own autocast, and the way
// out of both. The layers themselves are in precision/fp8_linear.h. [any-thread]
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>

namespace coupler::tensors {

// Above autograd, autocast and the intercept of sharded parameters, so that all of them see the
// operations that replace a layer.
constexpr c10::DispatchKey kFp8Key = c10::DispatchKey::PreDispatch;

// Makes the calling thread's linear layers multiply in fp8, with gradients in this type (e5m2 or
// e4m3fn), and return bf16. Empty restores LibTorch's layers. Returns the previous setting.
std::optional<c10::ScalarType> set_fp8_linear(std::optional<c10::ScalarType> gradients);
std::optional<c10::ScalarType> fp8_linear();

// While it lives, the calling thread computes in its operands' types, in whatever scope it is.
std::shared_ptr<void> outside_autocast();

}  // namespace coupler::tensors
