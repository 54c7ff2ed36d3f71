// The mpirun of this machine. Plain functions; not for use in threads: one may fork.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct MpiInfo {
  std::string path;     // "": none in PATH
  std::string version;  // "mpirun (Open MPI) 4.1.4"; "": it does not say
};

// The first of these programs that PATH has. Its version is read from files where they tell, since
// starting mpirun costs more than all else that `coupler env` does; else it is run and asked.
MpiInfo mpi_info(const std::vector<std::string>& names);

// One line for people.
std::string describe(const MpiInfo& mpi);

}  // namespace coupler::cli
