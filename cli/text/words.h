// Words of lists and of command lines that are passed on. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// The parts between the separators: always one more than there are separators.
std::vector<std::string> split(std::string_view text, char separator);

// A null-terminated argv that points into words, which must outlive it unchanged. The callers that
// take it, exec included, do not write to its characters.
std::vector<char*> argv_of(const std::vector<std::string>& words);

}  // namespace coupler::cli
