// Values that are logged, as text: pure functions, any thread.
#pragma once

#include <coupler/tracker.h>

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// "0.5" (as short as it can be and be read back the same), "nan", "inf", "-inf", "7", "true", the
// text itself.
std::string text_of(const TrackValue& value);

// A number as a number, true as 1 and false as 0; none of a text.
std::optional<double> number_of(const TrackValue& value);

// The text with what is no UTF-8 replaced by U+FFFD, as most readers insist on it.
std::string as_utf8(std::string_view text);

// Adds the value in JSON. There is no NaN in it: NaN, Infinity and -Infinity are written as these
// texts, as Protobuf's JSON has them.
void append_json_value(std::string& out, const TrackValue& value);
void append_json_text(std::string& out, std::string_view text);

// {"name": value, …}; of a name that repeats, the last.
void append_json_object(std::string& out, const TrackValues& values);

}  // namespace coupler
