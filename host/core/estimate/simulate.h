// Simulates a step's log as one rank of a job would run it: in addition to the program's own
// tensors, it takes and gives back what strategy, residency, activations and optim of host/torch
// do. Pure functions.
#pragma once

#include <vector>

#include "estimate/ledger.h"
#include "estimate/plan.h"
#include "estimate/step_log.h"

namespace coupler::estimate {

// plans: one per model of the log.
MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans);

}  // namespace coupler::estimate
