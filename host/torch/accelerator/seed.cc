#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <coupler/accelerator.h>
#include <coupler/seed.h>
#include <coupler/state.h>

#include <cstdlib>

#include "device/generator.h"

namespace coupler {

void set_seed(uint64_t seed, const SeedOptions& options) {
  if (options.device_specific) seed += static_cast<uint64_t>(PartialState().rank());
  at::manual_seed(seed);
  std::srand(static_cast<unsigned>(seed));
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
}

void Accelerator::synchronize_random_state() {
  const auto synchronize = [this](at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = broadcast(generator.get_state());
    generator.set_state(state);
  };
  synchronize(at::detail::getDefaultCPUGenerator());
  if (const auto own = device_generator(device())) synchronize(*own);
}

}  // namespace coupler
