// Completion of -o KEY=VALUE: keys of the schema and of backends, and the values they take.
// Single-threaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace coupler::cli {

// What can stand where `begun` does, each with what it means; a key ends in "=". Keys of a backend
// are those of backend.NAME. once that is written. A backend that cannot be loaded has none.
std::vector<std::pair<std::string, std::string>> complete_setting(const std::string& begun);

}  // namespace coupler::cli
