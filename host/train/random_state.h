// RandomState: where LibTorch's random numbers are, the CPU's and those of the calling thread's
// device, so that a computation can draw the same ones again. A value; the functions take the
// generators' own locks: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "residency/generator_state.h"

namespace coupler {

class RandomState {
 public:
  RandomState();  // as it is now
  void restore() const;

 private:
  GeneratorState cpu_ = read_generator();
  std::optional<c10::Device> device_;
  at::Tensor on_device_;  // its generator's state; undefined: it has none
};

// Puts the generators back as they were.
class RandomGuard {
 public:
  RandomGuard() = default;
  ~RandomGuard() { state_.restore(); }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  const RandomState state_;
};

}  // namespace coupler
