// TOML as a flat list of entries with their positions; the only door to toml++. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/toml_guard.h"
#include "config/value.h"

namespace coupler {

// A value that is no table, or an empty table.
struct TomlEntry {
  std::string key;  // dotted; parts that are no bare keys are quoted
  RawValue value;
  TextPosition key_position;
  TextPosition value_position;
};

// Entries in the order of the text. Throws Error(kConfig) "<name>:line:column: …" for texts that
// are not TOML, too large, or nested too deeply.
std::vector<TomlEntry> read_toml(std::string_view text, std::string_view name);

// One value as it would stand behind "key =": entries below key, or null where it is no TOML.
std::optional<std::vector<TomlEntry>> read_toml_value(std::string_view key, std::string_view text);

}  // namespace coupler
