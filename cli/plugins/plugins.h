// How commands print the backends that were found. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler::cli {

std::string plugin_table(const std::vector<plugin::PluginReport>& reports);

// An array with one object per backend.
nlohmann::ordered_json plugins_json(const std::vector<plugin::PluginReport>& reports);

}  // namespace coupler::cli
