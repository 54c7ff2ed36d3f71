// Seeds of random numbers. Used by the training thread, before other threads draw.
#pragma once

#include <cstdint>

namespace coupler {

// For set_seed.
struct SeedOptions {
  bool device_specific = false;  // adds the rank, so that every process draws its own numbers
  bool deterministic = false;    // operations without a deterministic algorithm throw from now on
};

// Seeds LibTorch's generators and std::rand. A data loader's order is not affected: it depends on
// the loader's own seed and epoch. Not collective.
void set_seed(uint64_t seed, const SeedOptions& options = {});

}  // namespace coupler
