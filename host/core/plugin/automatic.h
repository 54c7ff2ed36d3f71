// What "auto" picks: of all transports found, and compositions of them, those that suit the job, by
// score. A composition lists its bases by role, one of them within a machine (coupler/bases.h); it
// is for jobs on several machines. [any-thread].
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "plugin/plugin.h"

namespace coupler::plugin {

// What is known when a backend is chosen. All ranks must know the same.
struct Circumstances {
  MpiLaunch launch = MpiLaunch::kTooLate;
  bool on_host = false;  // tensors are in host memory
  Spread spread = Spread::kUnknown;
  bool compositions = false;  // a composition may be taken, too
};

struct Candidate {
  PluginReport report;
  std::string rejection;  // why it is passed over; "": it could be taken
};

// Loads and probes everything that "auto" may take, as try_plugins does.
std::vector<PluginReport> probe_candidates(const config::BackendConfig& backend, bool on_host);

// First those that could be taken, the best first; of equal scores, the first in search order. Then
// the others. Wrappers and sharding plugins are not among them, as they are never taken. Probes the
// bases of compositions. reports: what probe_candidates() returned for the same on_host.
std::vector<Candidate> judge_candidates(const std::vector<PluginReport>& reports,
                                        const config::BackendConfig& backend,
                                        const Circumstances& known);

// The first of them. Logs which were passed over and why; throws Error(kPlugin) with these reasons
// if none is left.
PluginReport choose_automatically(const config::BackendConfig& backend, const Circumstances& known);

}  // namespace coupler::plugin
