// Patterns of dotted names. Pure function, any thread.
#pragma once

#include <regex>
#include <string>

namespace coupler {

// Matches whole names: * any characters except dots, ** any characters, others themselves.
std::regex name_pattern(const std::string& pattern);

}  // namespace coupler
