// The schema: one table of every key a user can set. Parsing, environment variable names,
// suggestions, `coupler config --explain` and the documentation all derive from it. Constant data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/value.h"

namespace coupler {

struct SchemaKey {
  std::string_view name;  // "backend.use"
  ValueType type;
  std::string_view constraint;  // ">= 1", completes "must be …"; "" if any value is valid
  std::string_view doc;         // one sentence
  bool (*accepts)(const SettingValue& value);  // null: any
  void (*set)(Config& config, SettingValue value);
  SettingValue (*get)(const Config& config);  // of a default Config: the default
};

const std::vector<SchemaKey>& schema();
const SchemaKey* find_key(std::string_view name);

// COUPLER_BACKEND_USE for "backend.use".
std::string environment_name(std::string_view key);

// Every full key, for suggestions.
std::vector<std::string> schema_names();

}  // namespace coupler
