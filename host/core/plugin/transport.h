// What transport a job uses, decided once, before its processes exist. [any-thread].
#pragma once

#include <string>
#include <vector>

#include "plugin/plugin.h"

namespace coupler {

struct TransportPlan {
  std::string use;                     // backend.use with "auto" resolved
  std::string transport;               // what moves the bytes: use, or the base of a wrapper
  bool needs_mpi_launch = false;       // the transport's processes must be started by mpirun
  std::vector<std::string> overrides;  // "key=value", as for -o, for what was resolved
};

// Loads and probes the backend, and its base if it needs one, in child processes. Throws
// Error(kPlugin) with the reason if either is unusable, Error(kConfig) if the base is not a
// transport. mpi: whether mpirun started, or could start, the processes. on_host: as in
// resolve_auto.
TransportPlan plan_transport(const BackendConfig& backend, MpiLaunch mpi, bool on_host = false);

}  // namespace coupler
