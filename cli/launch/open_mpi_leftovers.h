// What Open MPI 4 leaves in folders of its own where its processes were killed: session folders in
// the temporary folder, segments of shared memory in /dev/shm. It gets there where the user has
// chosen Open MPI's folders, where /dev/shm cannot hold the launcher's (mpi_folder.h), and on the
// other machines of a job. Plain function, [any-thread].
#pragma once

#include "cli/launch/leftovers.h"

namespace coupler::cli {

// Of this user and this machine, whose name they bear, and what no process has open.
void add_open_mpi_leftovers(Leftovers& found, Then then);

}  // namespace coupler::cli
