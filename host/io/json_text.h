// Texts on their way into JSON files. Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// The text as a JSON string, in quotes, with nothing escaped that need not be. Nothing where it is
// no valid UTF-8.
std::optional<std::string> json_string(std::string_view text);

}  // namespace coupler
