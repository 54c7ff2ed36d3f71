// What `coupler plugins` and `coupler env` print of the backends that were found. Pure function.
#pragma once

#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler::cli {

std::string plugin_table(const std::vector<PluginReport>& reports);

}  // namespace coupler::cli
