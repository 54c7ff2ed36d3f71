// Words: of lists in a text, and of command lines that are handed on. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// The parts between the separators; one more than there are of these.
std::vector<std::string> split(std::string_view text, char separator);

// An argv, with the null at its end, into words, which have to stay as they are meanwhile. Nobody
// who takes an argv writes to its characters, exec included.
std::vector<char*> argv_of(const std::vector<std::string>& words);

}  // namespace coupler::cli
