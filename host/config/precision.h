// What training.mixed_precision means, in words: the one source for `coupler config --explain` and
// the Accelerator's start-up line. Pure functions.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler {

// "autocast regions compute in bf16 …; parameters, … in the model's own types".
std::string describe_precision(const TrainingConfig& config);

}  // namespace coupler
