// The state of LibTorch's default CPU generator as a value. The functions take the generator's own
// lock; any thread may call them.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <optional>

namespace coupler {

struct GeneratorState {
  at::mt19937 engine;
  std::optional<float> next_float;  // the cached second sample of a normal pair
  std::optional<double> next_double;
};

GeneratorState read_generator();
void write_generator(const GeneratorState& state);
bool same_state(const GeneratorState& a, const GeneratorState& b);

// A state derived from this one whose stream is separate from it, so that draws from it never yield
// numbers that belong to a weight.
GeneratorState state_apart(const GeneratorState& state);

// Restores the generator's state on destruction.
class GeneratorGuard {
 public:
  GeneratorGuard() : state_(read_generator()) {}
  ~GeneratorGuard() { write_generator(state_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  GeneratorState state_;
};

}  // namespace coupler
