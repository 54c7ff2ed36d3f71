// RandomState: the state of LibTorch's random number generators, the CPU's and that of the calling
// thread's device, so that a computation can draw the same numbers again. A value type; any thread
// may use it, since the functions take the generators' own locks.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "empty_weights/recording.h"

namespace coupler::activations {

class RandomState {
 public:
  RandomState();  // the current state
  void restore() const;

 private:
  empty_weights::GeneratorState cpu_ = empty_weights::read_generator();
  std::optional<c10::Device> device_;
  at::Tensor on_device_;  // its generator's state; undefined if it has none
};

// Restores the generators on destruction.
class RandomGuard {
 public:
  RandomGuard() = default;
  ~RandomGuard() { state_.restore(); }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  const RandomState state_;
};

}  // namespace coupler::activations
