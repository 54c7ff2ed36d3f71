#include "cli/launch/mpi_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/process.h"
#include "cli/process/folder_use.h"

namespace coupler::cli {

MpiFolder::MpiFolder() {
  // Open MPI rejects a base for all machines combined with bases for some, so keep the user's.
  for (const std::string release : {"OMPI_MCA_orte_", "PRTE_MCA_prte_"}) {
    for (const char* chosen : {"tmpdir_base", "local_tmpdir_base", "remote_tmpdir_base"}) {
      if (std::getenv((release + chosen).c_str()) != nullptr) return;
    }
  }
  for (const char* chosen :
       {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
    if (std::getenv(chosen) != nullptr) return;
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
  // Open MPI 4's names, then those of 5.
  const auto known = fmt::format("{}={}", kVariable, path_);
  if (!one_machine) {
    return {known, "OMPI_MCA_orte_local_tmpdir_base=" + path_,
            "PRTE_MCA_prte_local_tmpdir_base=" + path_};
  }
  return {known, "OMPI_MCA_orte_tmpdir_base=" + path_,
          "OMPI_MCA_btl_vader_backing_directory=" + path_, "PRTE_MCA_prte_tmpdir_base=" + path_,
          "OMPI_MCA_btl_sm_backing_directory=" + path_};
}

}  // namespace coupler::cli
