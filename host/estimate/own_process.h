// Runs an estimate in a process of its own, whose heap it may use up. Not for use in threads: it
// forks.
#pragma once

#include <functional>

#include "estimate/ledger.h"

namespace coupler {

// What work gives there. Throws Error(kInternal) with what it threw, or how the process ended.
MemoryEstimate in_own_process(const std::function<MemoryEstimate()>& work);

}  // namespace coupler
