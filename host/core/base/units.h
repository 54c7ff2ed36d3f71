// Sizes and durations as users write them, and the time of day.
//
// Sizes: "10GB", "1.5 GiB", "4096"; KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of
// 1024, and a number without a unit is bytes. Pure functions.
//
// Units must be spelled exactly so: "Gb" means bits elsewhere, and "gb" could be either.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// In bytes, rounded down; at least 1 and at most 2^63 - 1. Throws Error(kInvalidArgument) naming
// `what`, the key or option that the text belongs to.
uint64_t parse_byte_size(std::string_view text, const std::string& what);

// For people: "0 B", "1.5 KiB", "12.0 GiB".
std::string format_byte_size(uint64_t bytes);

// Durations as users write them: "30s", "500ms", "2min", "1.5h", "250us"; a number without a unit
// is seconds. Pure functions.

// Null if the text is not a duration or is out of range; negative durations are valid.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);
std::optional<std::chrono::nanoseconds> duration_of_seconds(double seconds);

// The shortest exact form, e.g. "30s", "1500ms".
std::string format_duration(std::chrono::nanoseconds duration);

// The time now, in seconds since 1970-01-01 00:00 UTC; it may jump if the clock is set.
// [any-thread]
double seconds_since_epoch();

}  // namespace coupler
