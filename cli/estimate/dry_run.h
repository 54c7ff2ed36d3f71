// Runs a training program on tensors without memory, for coupler estimate. Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/step_log.h"

namespace coupler::cli {

// One process; config: what the command line says (file and overrides), more overrides behind it.
// What the program prints goes to standard error where it fails. Throws Error naming what it did
// not do.
StepLog run_dry(const std::vector<std::string>& program, const ConfigRequest& config,
                const std::vector<std::string>& more);

}  // namespace coupler::cli
