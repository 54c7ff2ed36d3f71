// Imports other programs' configurations as a draft of ours, and records what became of each of
// their keys. Pure functions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/import/config_draft.h"
#include "cli/import/import_rules.h"

namespace coupler::cli {

struct ImportedKey {
  std::string key;                // theirs: "fsdp_config.fsdp_offload_params"
  std::string value;              // as written in their file
  std::vector<std::string> ours;  // keys of the draft: "backend.fsdp.offload.device"
  std::string why;                // why there is none, or what else to do; "": nothing to add
};

struct Import {
  ConfigDraft draft;
  std::vector<ImportedKey> keys;  // in their file's order
};

// Imports another program's configuration: Accelerate's YAML or JSON, else DeepSpeed's JSON. where:
// its path, for messages. Throws Error(kConfig) naming the place if it is neither.
Import import_text(std::string text, const std::string& where);

// The YAML of `accelerate config` (or its JSON, which is also YAML), of any version. Throws
// Error(kConfig), naming line and column of invalid YAML, or if it is not a map.
Import import_accelerate(const std::string& text, const std::string& where);

// DeepSpeed's JSON. Throws Error(kConfig) likewise.
Import import_deepspeed(const std::string& text, const std::string& where);

// Removes settings that a backend would refuse in combination with the others; they had no effect
// in the other program.
void resolve_import(Import& result);

// Human-readable, one line per key.
std::string describe(const Import& import);

// The rules for the keys of another program's configuration, by key.
using ImportRules = std::map<std::string, ImportRule>;

// The deepest nesting of tables in an imported file.
inline constexpr int kMaxLevels = 16;
// Their keys with values, in the file's order; lists are joined with commas.
using ImportEntries = std::vector<std::pair<std::string, std::string>>;

// The answer for a key without its own rule, in a table whose keys all have the same one; "" for
// other tables.
using TableAnswer = std::function<std::string(const std::string& table)>;

// Applies the rules and records what became of each key, including unknown keys.
void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result);

}  // namespace coupler::cli
