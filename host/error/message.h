// The text of an Error in its two parts, for lists and tables of problems. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Stands in an Error's what() between the message and the hint.
inline constexpr std::string_view kHintMark = "\n  hint: ";

std::string without_hint(const std::string& text);
std::string hint_in(const std::string& text);  // empty where it has none

}  // namespace coupler
