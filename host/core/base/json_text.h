// Strings for JSON files. Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// The text as a quoted JSON string that escapes only what it must. Nothing if it is not valid
// UTF-8.
std::optional<std::string> json_string(std::string_view text);

}  // namespace coupler
