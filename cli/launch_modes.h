// The ways to start a job's ranks; one function each, which returns the exit code after the last
// process has ended. Single-threaded.
#pragma once

#include "launch_plan.h"
#include "mpirun.h"

namespace coupler::cli {

// As processes of ours.
int launch_local(const LaunchPlan& plan);

// Through Open MPI's mpirun, which starts `coupler rank-shim` for every rank.
int launch_mpi(const LaunchPlan& plan, const Mpirun& mpirun);

}  // namespace coupler::cli
