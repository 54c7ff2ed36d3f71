// coupler estimate of a checkpoint or a config.json. Single-threaded.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "estimate_words.h"

namespace coupler::cli {

// The text to print. Throws Error naming the file and what is wrong.
std::string estimate_model(const EstimateWords& words, const Config& config, uint64_t limit);

}  // namespace coupler::cli
