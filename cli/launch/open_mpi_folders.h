// The settings that tell Open MPI 4 and 5 where to put what mpirun and its ranks share.
// [any-thread]
#pragma once

#include <array>
#include <string>

namespace coupler::cli {

// The folder that holds the session folders: of all machines, of mpirun's, of the others.
inline constexpr std::array kSessionBases{
    "OMPI_MCA_orte_tmpdir_base",        "OMPI_MCA_orte_local_tmpdir_base",
    "OMPI_MCA_orte_remote_tmpdir_base", "PRTE_MCA_prte_tmpdir_base",
    "PRTE_MCA_prte_local_tmpdir_base",  "PRTE_MCA_prte_remote_tmpdir_base"};

// The transports that keep shared memory in files: of Open MPI 4 and of 5.
inline constexpr std::array kSegmentTransports{"vader", "sm"};

// The folder of such a transport's files.
inline std::string segment_folder_setting(const std::string& transport) {
  return "OMPI_MCA_btl_" + transport + "_backing_directory";
}

}  // namespace coupler::cli
