// Loads and probes a plugin for a report, so that a bad one costs its row and not the process.
// [any-thread].
#pragma once

#include <functional>
#include <string>

#include "plugin/plugin.h"

namespace coupler {

// Runs examine in a child process and returns its answer; a child that dies or does not answer in
// time gives a report that says so. A process that has other threads cannot be forked safely: there
// examine runs in this process.
PluginReport run_in_child(const std::string& name, const std::string& path,
                          const std::function<PluginReport()>& examine);

// The plugin that use names (as in backend.use), loaded and probed in a child process. Never
// throws Error: what is wrong with it is the report's reason.
PluginReport try_plugin(const std::string& use, const BackendConfig& backend);

}  // namespace coupler
