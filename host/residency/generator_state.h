// The state of LibTorch's default CPU generator as a value. The functions take the generator's own
// lock: any thread.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <optional>

namespace coupler {

struct GeneratorState {
  at::mt19937 engine;
  std::optional<float> next_float;  // the second half of a pair of normal numbers
  std::optional<double> next_double;
};

GeneratorState read_generator();
void write_generator(const GeneratorState& state);
bool same_state(const GeneratorState& a, const GeneratorState& b);

// A state that follows from this one but shares no numbers with it, so that nobody who draws from
// it gets numbers that belong to a weight.
GeneratorState state_apart(const GeneratorState& state);

// Puts the generator back as it was.
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
