#include "cli/launch/mpi_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "rendezvous/process_identity.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParent = "/dev/shm";
constexpr std::string_view kName = "coupler-mpi-";  // then process id, "-", start time

void remove_folder(const fs::path& path) {
  std::error_code ignored;  // it is a clean-up: what cannot be removed stays
  fs::remove_all(path, ignored);
}

bool is_ours(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid();
}

void remove_left_behind() {
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(kParent, failure)) {
    const auto name = entry.path().filename().string();
    const auto dash = name.rfind('-');
    if (name.compare(0, kName.size(), kName) != 0 || dash < kName.size() ||
        !is_ours(entry.path())) {
      continue;
    }
    const ProcessIdentity owner{std::atol(name.c_str() + kName.size()), name.substr(dash + 1)};
    if (!is_alive(owner)) {
      remove_folder(entry.path());
    }
  }
}

}  // namespace

MpiFolder::MpiFolder() {
  remove_left_behind();
  // One for all machines and others for some are more than Open MPI takes.
  for (const char* chosen :
       {"OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base",
        "OMPI_MCA_orte_remote_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"}) {
    if (std::getenv(chosen) != nullptr) return;
  }
  const auto self = own_identity();
  auto path = fmt::format("{}/{}{}-{}", kParent, kName, self.pid, self.started);
  if (::mkdir(path.c_str(), 0700) == 0) {
    path_ = std::move(path);
  }
}

MpiFolder::~MpiFolder() {
  if (!path_.empty()) {
    remove_folder(path_);
  }
}

std::vector<std::string> MpiFolder::environment(bool one_machine) const {
  if (path_.empty()) {
    return {};
  }
  if (!one_machine) {
    return {"OMPI_MCA_orte_local_tmpdir_base=" + path_};
  }
  return {"OMPI_MCA_orte_tmpdir_base=" + path_, "OMPI_MCA_btl_vader_backing_directory=" + path_};
}

}  // namespace coupler::cli
