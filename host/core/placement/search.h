// Searches for the device of each unit with which a run takes the least predicted time. Pure
// function, any thread; the same problem always gives the same answer.
//
// It starts with guesses (devices filled in several orders, with and without room for copies),
// improves the best by moving and swapping units, then runs branch and bound over all assignments,
// in the order of units. The result is exact if branch and bound completes, as it does for a dozen
// units; for more, a limit on forecasts, not on time, ends it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "placement/forecast.h"

namespace coupler {

struct SearchResult {
  std::vector<size_t> lies;  // the device index of each unit
  Forecast forecast;
  bool exact = false;  // proven optimal
};

// nullopt if no assignment that fits was found. Units of one group are on one device. `starts`:
// assignments to try in addition to the guesses.
std::optional<SearchResult> search_placement(const RunProblem& problem,
                                             const std::vector<RunUnit>& units,
                                             const std::vector<std::vector<size_t>>& starts = {});

}  // namespace coupler
