#include "empty_weights/generator_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace coupler {
namespace {

at::CPUGeneratorImpl& generator() {
  return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
}

}  // namespace

GeneratorState read_generator() {
  at::CPUGeneratorImpl& source = generator();
  const std::lock_guard lock(source.mutex_);
  return {source.engine(), source.next_float_normal_sample(), source.next_double_normal_sample()};
}

void write_generator(const GeneratorState& state) {
  at::CPUGeneratorImpl& target = generator();
  const std::lock_guard lock(target.mutex_);
  target.set_engine(state.engine);
  target.set_next_float_normal_sample(state.next_float);
  target.set_next_double_normal_sample(state.next_double);
}

bool same_state(const GeneratorState& a, const GeneratorState& b) {
  const at::mt19937_data_pod x = a.engine.data(), y = b.engine.data();
  return x.seed_ == y.seed_ && x.left_ == y.left_ && x.next_ == y.next_ && x.state_ == y.state_ &&
         a.next_float == b.next_float && a.next_double == b.next_double;
}

GeneratorState state_apart(const GeneratorState& state) {
  at::mt19937 engine = state.engine;
  const uint64_t high = engine();
  return {at::mt19937(high << 32 | engine()), std::nullopt, std::nullopt};
}

}  // namespace coupler
