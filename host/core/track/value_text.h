// Logged values as text. Pure functions, any thread.
#pragma once

#include <coupler/tracker.h>

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// "0.5" (the shortest form that reads back the same), "nan", "inf", "-inf", "7", "true", a string
// as it is.
std::string text_of(const TrackValue& value);

// A number as a number, true as 1 and false as 0; none for a string.
std::optional<double> number_of(const TrackValue& value);

// The text with invalid UTF-8 replaced by U+FFFD, since most readers reject it.
std::string as_utf8(std::string_view text);

// Appends the value as JSON. NaN, Infinity and -Infinity, which JSON lacks, become these strings,
// as in Protobuf's JSON.
void append_json_value(std::string& out, const TrackValue& value);
void append_json_text(std::string& out, std::string_view text);

// {"name": value, …}; the last value of a repeated name.
void append_json_object(std::string& out, const TrackValues& values);

}  // namespace coupler
