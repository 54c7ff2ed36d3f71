// Completion of -o KEY=VALUE: keys of the schema and of backends, and their values.
// Single-threaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace coupler::cli {

// Candidates for the argument typed as `begun`, each with its meaning; a key ends in "=". A
// backend's keys are offered once "backend.NAME." is typed, unless the backend cannot be loaded.
std::vector<std::pair<std::string, std::string>> complete_setting(const std::string& begun);

}  // namespace coupler::cli
