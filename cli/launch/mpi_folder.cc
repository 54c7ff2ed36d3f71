#include "cli/launch/mpi_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/process.h"
#include "cli/launch/open_mpi_folders.h"
#include "cli/process/folder_use.h"

namespace coupler::cli {

MpiFolder::MpiFolder() {
  // Open MPI rejects a base for all machines combined with bases for some, so keep the user's.
  for (const char* chosen : kSessionBases) {
    if (std::getenv(chosen) != nullptr) return;
  }
  for (const char* transport : kSegmentTransports) {
    if (std::getenv(segment_folder_setting(transport).c_str()) != nullptr) return;
  }
  const auto self = own_identity();
  path_ = fmt::format("{}/{}{}-{}", kParent, kPrefix, self.pid, self.started);
}

void MpiFolder::create() {
  if (path_.empty()) {
    return;
  }
  if (::mkdir(path_.c_str(), 0700) == 0) {
    use_ = use_folder(path_);
    ::fcntl(use_.get(), F_SETFD, 0);  // for mpirun
  }
  if (!use_) {
    path_.clear();
  }
}

MpiFolder::~MpiFolder() {
  if (use_) {
    std::error_code ignored;  // only a cleanup: the next launcher tries again
    std::filesystem::remove_all(path_, ignored);
  }
}

std::vector<std::string> MpiFolder::environment(bool one_machine) const {
  if (path_.empty()) {
    return {};
  }
  const std::string base = one_machine ? "tmpdir_base=" : "local_tmpdir_base=";
  // Open MPI 4's name, then that of 5.
  std::vector<std::string> variables{fmt::format("{}={}", kVariable, path_),
                                     "OMPI_MCA_orte_" + base + path_,
                                     "PRTE_MCA_prte_" + base + path_};
  if (!one_machine) return variables;
  for (const char* transport : kSegmentTransports) {
    variables.push_back(fmt::format("{}={}", segment_folder_setting(transport), path_));
  }
  return variables;
}

}  // namespace coupler::cli
