// The schema: one table of every key a user can set, made of keys.def. Parsing, environment
// variable names, suggestions, AcceleratorOptions, `coupler config --explain` and the documentation
// all derive from it. Constant data.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/value.h"

namespace coupler::config {

struct SchemaKey {
  std::string name;  // "backend.use"
  ValueType type;
  std::string constraint;                            // ">= 1", completes "must be …"; "": any
  std::string_view doc;                              // a sentence or more
  std::function<bool(const SettingValue&)> accepts;  // null: any
  void (*set)(Config& config, SettingValue value);
  SettingValue (*get)(const Config& config);  // of a default Config: the default
};

const std::vector<SchemaKey>& schema();
const SchemaKey* find_key(std::string_view name);

// COUPLER_BACKEND_USE for "backend.use".
std::string environment_name(std::string_view key);

// Every full key, for suggestions.
std::vector<std::string> schema_names();

}  // namespace coupler::config
