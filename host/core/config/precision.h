// Describes training.mixed_precision in words, for `coupler config --explain` and the Accelerator's
// startup line. Pure functions.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler {

// "autocast regions compute in bf16 …; parameters, … in the model's own types".
std::string describe_precision(const TrainingConfig& config);

}  // namespace coupler
