// Replays a step's log as one rank of a job would have run it: what that rank takes and gives back
// beside the program's own tensors is what host/strategy, residency, offload and optim take and
// give back. Pure function.
#pragma once

#include <vector>

#include "estimate/ledger.h"
#include "estimate/plan.h"
#include "estimate/step_log.h"

namespace coupler {

// plans: one for each model of the log.
MemoryEstimate replay(const StepLog& log, const std::vector<EstimatePlan>& plans, Heap& heap);
// The same on a heap of its own: the C library's, in a process made for it, or a model where the
// log has no events.
MemoryEstimate replay(const StepLog& log, const std::vector<EstimatePlan>& plans);

}  // namespace coupler
