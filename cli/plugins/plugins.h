// How commands print the backends that were found. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler::cli {

// The reason of a backend's probe on one line: if it can be used, the first line alone. Further
// ones are details.
std::string short_reason(const plugin::PluginReport& report);

// details: also what the probes of usable backends say after their first line.
std::string plugin_table(const std::vector<plugin::PluginReport>& reports, bool details = false);

// An array with one object per backend.
nlohmann::ordered_json plugins_json(const std::vector<plugin::PluginReport>& reports);

}  // namespace coupler::cli
