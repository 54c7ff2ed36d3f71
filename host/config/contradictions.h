// Keys that are right by themselves but not beside each other, whatever the model: asked by every
// training program as it starts, and by `coupler config check`. Pure functions.
#pragma once

#include <coupler/error.h>

#include <vector>

#include "config/config.h"

namespace coupler {

// One Error(kConfig) for each, whose subject is the key to look at first.
std::vector<Error> contradictions_of(const Config& config);

// The same for a backend that divides the model among the ranks, which shows when it has planned.
std::vector<Error> contradictions_with_division(const MemoryConfig& memory,
                                                const CommunicationConfig& communication);

// Throws the first, where there is one.
void throw_first(const std::vector<Error>& contradictions);

}  // namespace coupler
