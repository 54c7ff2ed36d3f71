// Mpirun: the MPI launcher of this machine and the commands by which it starts ranks. Values and
// plain functions; no threading rule.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_modes.h"
#include "cli/launch/launch_plan.h"

namespace coupler::cli {

struct Mpirun {
  enum class Kind { kOpenMpi, kHydra };  // kHydra: MPICH's, and Intel MPI's
  std::string path;
  Kind kind = Kind::kOpenMpi;
};

// Open MPI's mpirun, for a backend that needs it. Throws Error(kPlugin) naming the backend if there
// is none.
Mpirun find_open_mpi(const std::string& backend);

// For --via mpirun: the first in PATH; if the backend needs an MPI launch, Open MPI's is preferred.
// Throws Error(kUsage) if there is none, or it is of neither kind.
Mpirun find_mpirun(const LaunchPlan& plan);

// Whether all ranks run on this machine.
bool stays_on_this_machine(const LaunchPlan& plan);

// The command that starts a `coupler rank-shim` for each rank.
std::vector<std::string> shim_command(const LaunchPlan& plan, const Mpirun& mpirun);

// The variables of the ranks, except the store's address; without the variables meant only for the
// shims.
Variables shim_rank_variables(const LaunchPlan& plan);
// The same, plus the variables that tell the shims what else to do.
Variables shim_variables(const LaunchPlan& plan);

// In the environment of mpirun only; if the second is set, we have set the first.
inline constexpr const char* kTopologyParts = "HWLOC_COMPONENTS";
inline constexpr const char* kShimTopologyParts = "COUPLER_SHIM_TOPOLOGY_PARTS";

// Starts the ranks through Open MPI's mpirun and `coupler rank-shim`; in launch_mpi.cc.
JobExit launch_mpi(const LaunchPlan& plan, const Mpirun& mpirun);

// The command that starts the ranks directly, on any machines.
ForeignCommand mpirun_command(const LaunchPlan& plan, const Mpirun& mpirun);

}  // namespace coupler::cli
