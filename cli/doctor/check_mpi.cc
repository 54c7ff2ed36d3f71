#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/doctor/checks.h"
#include "cli/machine/mpi_info.h"
#include "cli/text/table.h"

namespace coupler::cli {

Findings check_mpi(const Config&) {
  const MpiInfo mpi = mpi_info({"mpirun.openmpi", "mpirun"});
  if (mpi.path.empty()) {
    return {{Level::kNote, "mpirun is not in PATH", "the mpi backend cannot start its processes",
             install_command("openmpi-bin")}};
  }
  if (mpi.version.empty()) {
    return {{Level::kWarning, describe(mpi), "the mpi backend probably cannot start",
             install_command("--reinstall openmpi-bin")}};
  }
  if (mpi.version.find("Open MPI") == std::string::npos &&
      mpi.version.find("OpenRTE") == std::string::npos &&
      mpi.version.find("PRRTE") == std::string::npos) {
    return {{Level::kNote,
             fmt::format("{} does not belong to Open MPI ({})", mpi.path, one_line(mpi.version)),
             "the mpi backend needs Open MPI; --via mpirun accepts either",
             install_command("openmpi-bin")}};
  }
  Findings findings = {{Level::kOk, one_line(describe(mpi))}};
  if (geteuid() == 0 && (std::getenv("OMPI_ALLOW_RUN_AS_ROOT") == nullptr ||
                         std::getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") == nullptr)) {
    findings.push_back(
        {Level::kNote, "you are root, and mpirun refuses to run as root",
         "coupler launch sets the two variables that allow it; your own mpirun needs them, too",
         "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  }
  return findings;
}

}  // namespace coupler::cli
