// Imports other programs' configurations as a draft of ours, and records what became of each of
// their keys. Pure functions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/import/config_draft.h"
#include "cli/import/import_rules.h"

namespace coupler::cli {

struct ImportedKey {
  std::string key;                // theirs: "fsdp_config.fsdp_offload_params"
  std::string value;              // as written in their file
  std::vector<std::string> ours;  // keys of the draft: "backend.fsdp.offload.device"
  Answer answer;                  // why there is none, or what else to do
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

// The value, without quotes, that something else than the imported settings gives a key; "": none.
using SettingLookup = std::function<std::string(const std::string& key)>;

// Combines settings that mean something only together, and removes those that a backend would
// refuse in combination with the others: they had no effect in the other program, or (kWrong) were
// an error there. elsewhere: null for a file.
void resolve_import(Import& result, const SettingLookup& elsewhere = nullptr);

// How many ranks the sizes of Accelerate's ParallelismConfig multiply to; 0 if none is above 1.
int64_t ranks_of_sizes(const Import& import);
// Whether Accelerate's key is one of those sizes.
bool is_size_of_ranks(std::string_view key);

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

// Applies a rule to a key of theirs and records what became of it.
void apply_rule(const ImportRule& rule, const std::string& key, const std::string& value,
                Import& result);

// Records that this key of theirs decides about the key of ours, and no other does.
void claim(Import& result, ImportedKey& theirs, const std::string& ours);

// Applies the rules and records what became of each key, including unknown keys.
void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result);

}  // namespace coupler::cli
