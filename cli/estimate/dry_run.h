// Runs a training program on tensors without memory, for coupler estimate. Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/step_log.h"

namespace coupler::cli {

// Runs the program as one process. config: the file and overrides of the command line; more:
// overrides that follow them. If the program fails, its output goes to standard error. Throws Error
// naming what it failed to do.
StepLog run_dry(const std::vector<std::string>& program, const ConfigRequest& config,
                const std::vector<std::string>& more);

}  // namespace coupler::cli
