// The mpirun of this machine. Plain functions; single-threaded, since mpi_info() may fork.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct MpiInfo {
  std::string path;     // "": none in PATH
  std::string version;  // "mpirun (Open MPI) 4.1.4"; "": unknown
};

// The first of these programs in PATH. Its version is read from files if they have it, since
// starting mpirun takes longer than the rest of `coupler env`; otherwise from its --version.
MpiInfo mpi_info(const std::vector<std::string>& names);

// One line for users.
std::string describe(const MpiInfo& mpi);

}  // namespace coupler::cli
