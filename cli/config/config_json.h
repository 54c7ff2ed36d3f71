// What `coupler config --explain --json` prints. Pure function.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler::cli {

// {"file": …, "keys": [{"key", "value", "source", "default", "meaning"}, …]}; durations are text,
// as in TOML, and options of a backend have no default here.
std::string explain_config_json(const Config& config);

}  // namespace coupler::cli
