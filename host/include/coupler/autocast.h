// AutocastScope: while it lives, operations on the thread that made it compute in the reduced type
// of training.mixed_precision where that is safe, in fp32 where it is not, as LibTorch's autocast
// decides. Made by Accelerator::autocast; ends on the thread that made it, scopes within scopes in
// reverse order. Other threads are not affected: each makes its own.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace coupler {

// What operations compute in inside of an AutocastScope; device: on which kind of it.
struct AutocastSettings {
  // The kind of device, and the type that operations compute in there.
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType type = c10::ScalarType::BFloat16;
  bool enabled = true;      // false: full precision inside of another scope
  bool cache_casts = true;  // keep a parameter's cast copy until the outermost scope ends
  // With a value: linear layers multiply in fp8, gradients in this type, inputs and weights in
  // e4m3.
  std::optional<c10::ScalarType> fp8_gradients = {};
};

class AutocastScope {
 public:
  // Without settings it does nothing.
  explicit AutocastScope(const std::optional<AutocastSettings>& settings);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::optional<AutocastSettings> before_;  // what the destructor restores
};

}  // namespace coupler
