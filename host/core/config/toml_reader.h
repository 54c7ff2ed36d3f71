// TOML as a flat list of entries with their positions; the only user of toml++. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/toml_guard.h"
#include "config/value.h"

namespace coupler {

// A value other than a table, or an empty table.
struct TomlEntry {
  std::string key;  // dotted; parts that are not bare keys are quoted
  RawValue value;
  TextPosition key_position;
  TextPosition value_position;
};

// Entries in the order of the file. Throws Error(kConfig) "<name>:line:column: …" for text that is
// not TOML, too large, or nested too deeply.
std::vector<TomlEntry> read_toml(std::string_view text, std::string_view name);

// Parses one value as written after "key =": entries below key, or null if it is not TOML.
std::optional<std::vector<TomlEntry>> read_toml_value(std::string_view key, std::string_view text);

}  // namespace coupler
