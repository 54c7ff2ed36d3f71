// What `coupler config --explain --json` prints. Pure function.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler::cli {

// {"file": …, "keys": [{"key", "value", "source", "default", "meaning", "must_be"}, …]}. Durations
// are strings, as in TOML; a backend's options have only key, value and source.
std::string explain_config_json(const Config& config);

}  // namespace coupler::cli
