// Loads and probes plugins for a report, each in a child process, so that a bad one costs only its
// row, not the process (child_answers.h). [any-thread].
#pragma once

#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler {

// The plugins that uses name (as in backend.use), probed concurrently, in their order. Never throws
// Error: what is wrong with a plugin is its report's reason.
std::vector<PluginReport> try_plugins(const std::vector<std::string>& uses,
                                      const BackendConfig& backend);
PluginReport try_plugin(const std::string& use, const BackendConfig& backend);

}  // namespace coupler
