// Splits an Error's what() into message and hint, for lists and tables of problems. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Separates the message from the hint in an Error's what().
inline constexpr std::string_view kHintMark = "\n  hint: ";

std::string without_hint(const std::string& text);
std::string hint_in(const std::string& text);  // empty if there is none

}  // namespace coupler
