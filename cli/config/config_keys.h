// The reference of all keys, which `coupler config keys` prints and docs/configuration.md includes.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct KeyRow {
  std::string name;        // "backend.timeout"
  std::string type;        // "duration"
  std::string default_to;  // as in a TOML file
  std::string constraint;  // "> 0", completes "must be …"; "" if any value is valid
  std::string variable;    // environment variable; "" for a backend's options
  std::string meaning;     // one or more sentences
};

// The keys of the schema.
std::vector<KeyRow> schema_rows();

// The keys of [backend.NAME], declared by the plugin that `backend` names. Throws Error(kPlugin).
std::vector<KeyRow> backend_rows(const BackendConfig& backend);

// For people, for programs (an array of objects), and for pages (a table).
std::string keys_text(const std::vector<KeyRow>& rows);
std::string keys_json(const std::vector<KeyRow>& rows);
std::string keys_markdown(const std::vector<KeyRow>& rows);

// The command: argv[0] is "keys".
int run_config_keys(int argc, char** argv);

}  // namespace coupler::cli
