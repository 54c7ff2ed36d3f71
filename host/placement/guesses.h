// Assignments of units to devices from which a search begins. Pure function, any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "placement/forecast.h"

namespace coupler {

// Devices filled one after the other, with the units that are worth most, largest, smallest or
// first, or with what an even choice of offloaded units leaves; each with no room for copies on the
// main device, with room for one unit and for two. Not all of them fit.
std::vector<std::vector<size_t>> guessed_placements(const RunProblem& problem,
                                                    const std::vector<RunUnit>& units);

}  // namespace coupler
