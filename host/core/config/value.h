// Values on their way into the configuration: what a layer provides (RawValue), what the schema
// expects (ValueType) and the converted result (SettingValue). Plain data, pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace coupler::config {

// A TOML value that no key accepts, described in words, e.g. "table", "date or time".
struct OtherValue {
  std::string what;
};
using RawValue =
    std::variant<std::string, int64_t, double, bool, std::vector<std::string>, OtherValue>;

// In the order of SettingValue's alternatives.
enum class ValueType { kString, kInteger, kNumber, kBoolean, kDuration, kStringList, kMeshSize };
using SettingValue = std::variant<std::string, int64_t, double, bool, std::chrono::nanoseconds,
                                  std::vector<std::string>, MeshSize>;

std::string_view to_string(ValueType type);

// Null if the value is not of that type. Numbers accept integers; durations accept strings and
// numbers of seconds; lists also accept one string whose parts are separated by colons, as in PATH;
// sizes of the mesh accept integers and "rest".
std::optional<SettingValue> convert(const RawValue& value, ValueType type);

// For messages: string "two", integer 3, boolean true, table.
std::string describe(const RawValue& value);

// As written in a TOML file.
std::string render(const SettingValue& value);
std::string render(const OptionValue& value);

}  // namespace coupler::config
