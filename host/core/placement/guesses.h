// Assignments of units to devices with which a search starts. Pure function, any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "placement/forecast.h"

namespace coupler {

// Devices filled one after the other, preferring the units that are most valuable, largest,
// smallest or first, or offloading evenly spaced units; each with room for the copies of no, one or
// two units on the first accelerator. Not all of them fit.
std::vector<std::vector<size_t>> guessed_placements(const RunProblem& problem,
                                                    const std::vector<RunUnit>& units);

}  // namespace coupler
