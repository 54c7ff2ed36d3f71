// Enforces memory.limit while a program runs: an allocator in front of LibTorch's own counts the
// memory of tensors. Installed once, and only if a limit is set. Any thread may allocate.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "estimate/settings.h"
#include "estimate/step_log.h"

namespace torch::optim {
class Optimizer;
}

namespace coupler {

// From now on, an allocation of host memory that would exceed the limit throws Error(kOutOfMemory).
void enforce_memory_limit(uint64_t limit, int rank);

// Measures the process's uncounted memory again: a model made before the limit was installed is
// counted once prepare has moved it.
void measure_uncounted_memory();

// Whether a model and its optimizer fit into memory.limit, checked before they allocate memory.

// Bytes of optimizer state per byte of parameters; 0 if that is not known.
double state_factor(const torch::optim::Optimizer& optimizer);

// log: models and optimizer_factor suffice; without events, activations are not counted. divided:
// whether the configured backend has its own plan. Throws Error(kConfig) that lists the memory
// needed by part and the settings that would fit, or names the unit that can never fit.
void require_fit(const estimate::StepLog& log, const config::Config& config, int rank,
                 const estimate::SharingRanks& ranks, bool divided);

// For the error of an allocation that exceeds the limit: the known sizes of tensors. Cheap, since
// it makes no plan.
std::string known_parts(const estimate::StepLog& log, int world_size, bool divided);

}  // namespace coupler
