// Loads and probes plugins for a report, each in a child process, so that a bad one costs only its
// row, not the process (base/subprocess.h). [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler::plugin {

// What plugins are given of the host: log lines go to the host's log. Lives as long as the process.
const db_host& host_services();

// The plugins that uses name (as in backend.use), probed concurrently, in their order. Never throws
// Error: what is wrong with a plugin is its report's reason. needed: a plugin without one of these
// capabilities (DB_CAP_*) is loaded but not probed, and so unusable.
std::vector<PluginReport> try_plugins(const std::vector<std::string>& uses,
                                      const config::BackendConfig& backend, uint64_t needed = 0);
PluginReport try_plugin(const std::string& use, const config::BackendConfig& backend);

}  // namespace coupler::plugin
