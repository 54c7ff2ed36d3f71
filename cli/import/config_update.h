// Brings a TOML configuration of an older version into today's form, for `coupler config update`:
// renamed keys get their names of today; values, comments and layout stay. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct RenamedKey {
  std::string before, today;  // full keys of one table: "training.accumulate", "training.…"
};

// All renames since version 0.1, the first. A version that renames a key adds a row.
const std::vector<RenamedKey>& renamed_keys();

struct UpdatedConfig {
  std::string text;
  std::vector<std::string> changes;  // "train.toml:3: training.a is now training.b"
};

// name: the file's, for messages. Throws Error(kConfig) naming the place if the text is not TOML,
// or has a key under both names.
UpdatedConfig update_config(const std::string& text, const std::string& name,
                            const std::vector<RenamedKey>& renamed);

}  // namespace coupler::cli
