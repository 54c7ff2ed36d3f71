// What "auto" is in a configuration, and why, for `coupler config --explain`. Probes the backends
// that are found, in child processes; [any-thread].
#pragma once

#include <string>

#include "config/config.h"

namespace coupler::cli {

// For a job on this machine, and for one that has several processes on each of several machines:
// each backend with its score, or why it is passed over. "" if no "auto" is to be resolved.
std::string explain_auto(const config::Config& config);

}  // namespace coupler::cli
