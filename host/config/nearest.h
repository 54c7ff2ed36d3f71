// "Did you mean …?": the known name nearest to one that was mistyped. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace coupler {

// Insertions, deletions, replacements and swaps of neighbours (Damerau-Levenshtein, restricted).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to name, "" where none is near. Of dotted names the last part, or its
// start, counts alone as well: 'seed' is near 'training.seed', 'threads' near
// 'x.threads_per_process'.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace coupler
