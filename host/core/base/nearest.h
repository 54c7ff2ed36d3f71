// "Did you mean …?": the known name nearest to a mistyped one. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace coupler {

// Insertions, deletions, replacements and swaps of neighbors (restricted Damerau-Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to name, "" if none is near. The last part of a dotted name, or its start,
// also matches alone: 'seed' is near 'training.seed', 'threads' near 'x.threads_per_process'.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace coupler
