// Mpirun: the MPI launcher of this machine, and how it is asked to start ranks. Values and plain
// functions; no thread rule.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/foreign_command.h"
#include "cli/launch/launch_plan.h"

namespace coupler::cli {

struct Mpirun {
  enum class Kind { kOpenMpi, kHydra };  // kHydra: MPICH's, and Intel MPI's
  std::string path;
  Kind kind = Kind::kOpenMpi;
};

// Open MPI's, which the backend mpi needs; Error(kPlugin) where there is none.
Mpirun find_open_mpi();

// For --via mpirun: the one that PATH names first; the backend mpi gets Open MPI's. Error(kUsage)
// where there is none, or it is of neither kind.
Mpirun find_mpirun(const LaunchPlan& plan);

// Whether the ranks all run on this machine.
bool stays_on_this_machine(const LaunchPlan& plan);

// What starts a `coupler rank-shim` for each rank.
std::vector<std::string> shim_command(const LaunchPlan& plan, const Mpirun& mpirun);

// What the ranks find in their environment besides where the store is: all that their shims are
// told by it is theirs alone.
Variables shim_rank_variables(const LaunchPlan& plan);
// The same, and what the shims are to do besides starting their ranks.
Variables shim_variables(const LaunchPlan& plan);

// In the environment of mpirun alone; where the second is set, the first is ours.
inline constexpr const char* kTopologyParts = "HWLOC_COMPONENTS";
inline constexpr const char* kShimTopologyParts = "COUPLER_SHIM_TOPOLOGY_PARTS";

// What starts the ranks themselves, on any machines.
ForeignCommand mpirun_command(const LaunchPlan& plan, const Mpirun& mpirun);

}  // namespace coupler::cli
