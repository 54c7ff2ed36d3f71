// Texts on their way into JSON files and into messages. Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// The text as a JSON string, in quotes, with nothing escaped that need not be. Nothing where it is
// no valid UTF-8.
std::optional<std::string> json_string(std::string_view text);

// A name out of somebody's file, for a message: short, without control characters, and without
// bytes of 0x80 and more where it is no valid UTF-8.
std::string shown_name(std::string_view name);

}  // namespace coupler
