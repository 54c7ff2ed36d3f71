// Simulates a step's log as one rank of a job would run it: in addition to the program's own
// tensors, it takes and gives back what host/strategy, residency, offload and optim do. Pure
// functions.
#pragma once

#include <functional>
#include <vector>

#include "estimate/ledger.h"
#include "estimate/plan.h"
#include "estimate/step_log.h"

namespace coupler {

// Runs an estimate in a child process, whose heap it may use up. It forks: call it only while the
// process has a single thread.

// Returns what work returns there. Throws Error(kInternal) with the message of what it threw, or
// with the status of the process.
MemoryEstimate in_own_process(const std::function<MemoryEstimate()>& work);

// plans: one per model of the log.
MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans, Heap& heap);
// The same on its own heap: the C library's, in a child process, or a model if the log has no
// events.
MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans);

}  // namespace coupler
