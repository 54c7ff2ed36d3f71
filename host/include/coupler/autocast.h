// AutocastScope: while alive, operations on the thread that created it compute in the reduced type
// of training.mixed_precision if that is safe and in fp32 otherwise, as LibTorch's autocast
// decides; the latest scope counts. Created by Accelerator::autocast, and by loops over prepared
// data loaders; must be destroyed on the same thread. Other threads are not affected.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace coupler {

// The precision of operations inside an AutocastScope.
struct AutocastSettings {
  // The type of device, and the dtype that operations on it compute in.
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType type = c10::ScalarType::BFloat16;
  bool enabled = true;      // false: full precision inside another scope
  bool cache_casts = true;  // keep a parameter's cast copy until the outermost scope ends
  // If set, linear layers multiply in fp8: gradients in this dtype, inputs and weights in e4m3.
  std::optional<c10::ScalarType> fp8_gradients = {};
};

class AutocastScope {
 public:
  // Without settings, does nothing.
  explicit AutocastScope(const std::optional<AutocastSettings>& settings);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::optional<AutocastSettings> before_;  // what the destructor restores
  AutocastScope* outer_ = nullptr;          // the thread's latest one before this
  const void* thread_ = nullptr;            // identifies it: elsewhere the destructor does nothing
};

}  // namespace coupler
