// Imports other programs' configurations as a draft of ours, and records what became of each of
// their keys. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/config/config_draft.h"

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

// ImportRules: a table from the keys of another program's configuration to functions that set our
// key or return why there is none.

// Imports a value, given as a string ("true", "3", "FULL_SHARD"), into the draft. Returns "" if
// setting a key was enough, else why no key was set or what else the user must do.
using ImportRule = std::function<std::string(ConfigDraft& draft, const std::string& value)>;
using ImportRules = std::map<std::string, ImportRule>;

// Sets one key to a string, one of a few words, an integer (from `least` to `most`) or a boolean.
// "auto", "none" and invalid values leave it at its default and return a reason.
ImportRule as_text(const std::string& key);
ImportRule as_word(const std::string& key, const std::vector<std::string>& words);
ImportRule as_integer(const std::string& key, int64_t least = 0, int64_t most = INT64_MAX);
ImportRule as_boolean(const std::string& key);
// We have no such key, for this reason.
ImportRule without(const std::string& why);
// The same, but a value that means "off" (false, no, 0) needs no reason.
ImportRule without_unless_off(const std::string& why);
// An option of `coupler launch`; the value replaces {} in words.
ImportRule word_of_launch(const std::string& words);

// The deepest nesting of tables in an imported file.
inline constexpr int kMaxLevels = 16;
// The values of DeepSpeed's offload_optimizer.device and offload_param.device.
inline const std::vector<std::string> kOffloadDevices = {"none", "cpu", "nvme"};

// The reasons for leaving a key at its default: the value is unspecified, or is not `what` ("a
// whole number").
std::string left_open();
std::string refused(const std::string& value, const std::string& what);

bool is_left_open(const std::string& value);  // auto, null, none, or empty
bool is_off(const std::string& value);
bool is_on(const std::string& value);
std::optional<int64_t> integer_of(const std::string& value);

// Their keys with values, in the file's order; lists are joined with commas.
using ImportEntries = std::vector<std::pair<std::string, std::string>>;

// The answer for a key without its own rule, in a table whose keys all have the same one; "" for
// other tables.
using TableAnswer = std::function<std::string(const std::string& table)>;

// Applies the rules and records what became of each key, including unknown keys.
void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result);

// For what `accelerate config` writes.
const ImportRules& accelerate_rules();

// For keys without their own rule: the answer for their table, or for a top-level key itself; "" if
// there is none.
std::string accelerate_table_answer(const std::string& table);

}  // namespace coupler::cli
