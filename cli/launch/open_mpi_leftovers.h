// What Open MPI 4 leaves in its own folders when its processes are killed: session folders in the
// temporary folder and shared-memory segments in /dev/shm. It uses these folders if the user chose
// them, if /dev/shm cannot hold the launcher's folder (mpi_folder.h), and on the other machines of
// a job. Plain function, [any-thread].
#pragma once

#include "cli/launch/leftovers.h"

namespace coupler::cli {

// Adds leftovers of this user whose names contain this machine's name and that no process has open.
void add_open_mpi_leftovers(Leftovers& found, Then then);

}  // namespace coupler::cli
