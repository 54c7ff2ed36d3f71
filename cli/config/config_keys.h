// The reference of every key: what `coupler config keys` prints, and docs/configuration.md with it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct KeyRow {
  std::string name;        // "backend.timeout"
  std::string type;        // "duration"
  std::string default_to;  // as it would stand in a TOML file
  std::string constraint;  // "> 0", completes "must be …"; "" where any value will do
  std::string variable;    // of the environment; "" for the options of a backend
  std::string meaning;     // a sentence or more
};

// Those of the schema.
std::vector<KeyRow> schema_rows();

// Those of [backend.NAME], as the plugin that `backend` finds declares them. Throws Error(kPlugin).
std::vector<KeyRow> backend_rows(const BackendConfig& backend);

// For people, for programs (an array of objects), and for pages (a table).
std::string keys_text(const std::vector<KeyRow>& rows);
std::string keys_json(const std::vector<KeyRow>& rows);
std::string keys_markdown(const std::vector<KeyRow>& rows);

// The command: argv[0] is "keys".
int run_config_keys(int argc, char** argv);

}  // namespace coupler::cli
