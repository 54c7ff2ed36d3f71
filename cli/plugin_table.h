// What commands print of the backends that were found. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler::cli {

std::string plugin_table(const std::vector<PluginReport>& reports);

// An array of objects, one a backend.
nlohmann::ordered_json plugins_json(const std::vector<PluginReport>& reports);

// The text of a document for people and programs. Texts come from plugins and users, too: what is
// no UTF-8 must not end the report.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace coupler::cli
