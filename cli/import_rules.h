// ImportRules: what the keys of another program's configuration become, as a table: key, and a
// function that sets ours or says why there is none. Pure data.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config_import.h"

namespace coupler::cli {

// Takes a value as text ("true", "3", "FULL_SHARD") into the draft. What it returns: empty where
// all is said by the key that was set, else why there is none, or what is to be done beside.
using ImportRule = std::function<std::string(ConfigDraft& draft, const std::string& value)>;
using ImportRules = std::map<std::string, ImportRule>;

// Sets one key: text, integer, number or yes and no; "auto" and "none" leave it at its default.
ImportRule as_text(const std::string& key);
ImportRule as_integer(const std::string& key);
ImportRule as_number(const std::string& key);
ImportRule as_boolean(const std::string& key);
// There is none, and this is why.
ImportRule without(const std::string& why);
// The same for values that say "off" (false, no, none, empty), which need nothing.
ImportRule without_unless_off(const std::string& why);

std::string lower(std::string text);  // of ASCII letters
bool is_off(const std::string& value);
bool is_on(const std::string& value);
std::optional<long> integer_of(const std::string& value);

// Applies the rule of `key`, and appends what became of it. A key that no rule knows is listed as
// such.
void apply_rule(const ImportRules& rules, const std::string& key, const std::string& value,
                Import& result);

}  // namespace coupler::cli
