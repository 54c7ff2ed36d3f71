// TOML as a flat list of entries with their positions; the only user of toml++. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace coupler::config {

// Scans TOML before it is parsed: parser and tree are recursive, and hostile input ([[[[… or
// a.a.a.a…) would overflow the stack. Pure function.

constexpr size_t kMaxTomlBytes = size_t{1} << 20;
constexpr int kMaxTomlDepth = 64;

struct TextPosition {
  size_t line = 1;
  size_t column = 1;
};

// Where brackets, braces and dotted keys first nest deeper than max_depth. The result for invalid
// TOML is unspecified: the parser reports what is wrong with it.
std::optional<TextPosition> find_deep_nesting(std::string_view text, int max_depth = kMaxTomlDepth);

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

}  // namespace coupler::config
