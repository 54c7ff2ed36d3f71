// The ways to start a job's ranks. Each function returns after the last process has ended.
// Single-threaded.
#pragma once

#include "cli/launch/launch_plan.h"
#include "cli/launch/mpirun.h"
#include "cli/launch/restarts.h"

namespace coupler::cli {

// As our own child processes.
JobEnd launch_local(const LaunchPlan& plan);

// Through Open MPI's mpirun, which starts `coupler rank-shim` for every rank.
JobEnd launch_mpi(const LaunchPlan& plan, const Mpirun& mpirun);

}  // namespace coupler::cli
