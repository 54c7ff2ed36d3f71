// Durations as users write them: "30s", "500ms", "2min", "1.5h", "250us"; a number without a unit
// is seconds. Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// Null if the text is not a duration or is out of range; negative durations are valid.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);
std::optional<std::chrono::nanoseconds> duration_of_seconds(double seconds);

// The shortest exact form, e.g. "30s", "1500ms".
std::string format_duration(std::chrono::nanoseconds duration);

}  // namespace coupler
