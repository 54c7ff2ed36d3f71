// The device of each unit with which a run takes the least predicted time. Pure function, any
// thread; the same problem always gives the same answer.
//
// First sound guesses (devices filled by several orders, with and without room for copies), then
// the best of them improved by moving and exchanging units, then branch and bound over all
// assignments, in the order of units. That one is exact where it comes to its end, which it does
// for a dozen units; a number of forecasts, not a clock, ends it for more.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "placement/forecast.h"

namespace coupler {

struct SearchResult {
  std::vector<size_t> lies;  // the index of a device for each unit
  Forecast forecast;
  bool exact = false;  // nothing is better
};

// Nothing where no assignment was found that fits. Units of one group are on one device. `starts`
// are assignments to try beside the guesses.
std::optional<SearchResult> search_placement(const RunProblem& problem,
                                             const std::vector<RunUnit>& units,
                                             const std::vector<std::vector<size_t>>& starts = {});

}  // namespace coupler
