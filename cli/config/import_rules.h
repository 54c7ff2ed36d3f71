// ImportRules: what the keys of another program's configuration become, as a table: key, and a
// function that sets ours or says why there is none. Pure data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/config/config_import.h"

namespace coupler::cli {

// Takes a value as text ("true", "3", "FULL_SHARD") into the draft. What it returns: empty where
// all is said by the key that was set, else why there is none, or what is to be done beside.
using ImportRule = std::function<std::string(ConfigDraft& draft, const std::string& value)>;
using ImportRules = std::map<std::string, ImportRule>;

// Sets one key: text, one of a few words, integer (from `least` to `most`) or yes and no. "auto"
// and "none" leave it at its default, and so does a value that the key cannot have, with a word
// about it.
ImportRule as_text(const std::string& key);
ImportRule as_word(const std::string& key, const std::vector<std::string>& words);
ImportRule as_integer(const std::string& key, int64_t least = 0, int64_t most = INT64_MAX);
ImportRule as_boolean(const std::string& key);
// There is none, and this is why.
ImportRule without(const std::string& why);
// The same for values that say "off" (false, no, 0), which need nothing.
ImportRule without_unless_off(const std::string& why);
// A word for another command, which takes the value's place in the text at {}.
ImportRule word_of_launch(const std::string& words);

// Tables within tables of a file that is read.
inline constexpr int kMostLevels = 16;
// The words of DeepSpeed's offload_optimizer.device and offload_param.device.
inline const std::vector<std::string> kOffloadDevices = {"none", "cpu", "nvme"};

// What is said of a value that is left as it is.
std::string left_open();
std::string refused(const std::string& value, const std::string& what);

std::string lower(std::string text);          // of ASCII letters
bool is_left_open(const std::string& value);  // auto, null, none, or empty
bool is_off(const std::string& value);
bool is_on(const std::string& value);
std::optional<int64_t> integer_of(const std::string& value);

// The keys of theirs with their values, in their order; lists of single values with commas.
using ImportEntries = std::vector<std::pair<std::string, std::string>>;

// The answer for a key that has no rule of its own but stands in a table whose keys all have the
// same one; "" elsewhere.
using TableAnswer = std::function<std::string(const std::string& table)>;

// Applies the rules, and notes what became of each key. One that nothing knows is listed as such.
void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result);

}  // namespace coupler::cli
