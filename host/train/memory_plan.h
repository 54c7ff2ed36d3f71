// Whether a model and its optimizer can fit into memory.limit, before they take their memory.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/step_log.h"
#include "rendezvous/process_info.h"

namespace torch::optim {
class Optimizer;
}

namespace coupler {

// Bytes of state for each byte of parameters, where that is known; else 0.
double state_factor(const torch::optim::Optimizer& optimizer);

// log: models and optimizer_factor are enough; activations are not counted without events. divided:
// whether the configured backend has a plan of its own. Throws Error(kConfig) with what would be
// needed, part by part, and the settings that would fit, or naming the unit that never can.
void require_fit(const StepLog& log, const Config& config, const ProcessInfo& process,
                 bool divided);

// For the error of an allocation that passes the limit: what is known to lie in tensors, and what
// would need less. Cheap: no plan is made.
std::string known_parts(const StepLog& log, int world, bool divided);

}  // namespace coupler
