// Whether a model and its optimizer fit into memory.limit, checked before they allocate memory.
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

// Bytes of optimizer state per byte of parameters; 0 if that is not known.
double state_factor(const torch::optim::Optimizer& optimizer);

// log: models and optimizer_factor suffice; without events, activations are not counted. divided:
// whether the configured backend has its own plan. Throws Error(kConfig) that lists the memory
// needed by part and the settings that would fit, or names the unit that can never fit.
void require_fit(const StepLog& log, const Config& config, const ProcessInfo& process,
                 bool divided);

// For the error of an allocation that exceeds the limit: the known sizes of tensors. Cheap, since
// it makes no plan.
std::string known_parts(const StepLog& log, int world, bool divided);

}  // namespace coupler
