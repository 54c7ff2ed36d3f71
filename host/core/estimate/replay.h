// Replays a step's log as one rank of a job would run it: in addition to the program's own tensors,
// it takes and gives back what host/strategy, residency, offload and optim do. Pure functions.
#pragma once

#include <vector>

#include "estimate/ledger.h"
#include "estimate/plan.h"
#include "estimate/step_log.h"

namespace coupler {

// plans: one per model of the log.
MemoryEstimate replay(const StepLog& log, const std::vector<EstimatePlan>& plans, Heap& heap);
// The same on its own heap: the C library's, in a child process, or a model if the log has no
// events.
MemoryEstimate replay(const StepLog& log, const std::vector<EstimatePlan>& plans);

}  // namespace coupler
