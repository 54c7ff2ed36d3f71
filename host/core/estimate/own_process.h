// Runs an estimate in a child process, whose heap it may use up. It forks: call it only while the
// process has a single thread.
#pragma once

#include <functional>

#include "estimate/ledger.h"

namespace coupler {

// Returns what work returns there. Throws Error(kInternal) with the message of what it threw, or
// with the status of the process.
MemoryEstimate in_own_process(const std::function<MemoryEstimate()>& work);

}  // namespace coupler
