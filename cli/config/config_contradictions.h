// Keys that are right by themselves but not beside each other, whatever the model. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

// A sentence for each, with the places.
std::vector<std::string> contradictions_of(const Config& config);

// The same for a backend that divides the model among the ranks.
std::vector<std::string> contradictions_with_division(const Config& config);

}  // namespace coupler::cli
