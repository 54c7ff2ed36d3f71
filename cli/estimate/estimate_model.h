// coupler estimate of a checkpoint or a config.json. Single-threaded.
#pragma once

#include <cstdint>
#include <string>

#include "cli/estimate/estimate_words.h"
#include "config/config.h"

namespace coupler::cli {

// Returns what to print. Throws Error naming the file and what is wrong.
std::string estimate_model(const EstimateWords& words, const Config& config, uint64_t limit);

}  // namespace coupler::cli
