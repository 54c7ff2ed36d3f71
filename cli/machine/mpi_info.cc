#include "cli/machine/mpi_info.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/mapped_file.h"
#include "cli/machine/small_files.h"
#include "cli/process/run_and_read.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// Debian's openmpi-bin according to dpkg: "4.1.4" of "4.1.4-3+b1"; "" if it is not installed.
std::string package_version() {
  constexpr const char* kList = "/var/lib/dpkg/status";
  if (access(kList, R_OK) != 0) return "";
  const auto file = MappedFile::open(kList);  // reading it takes longer than the rest of `env`
  const std::string_view list(reinterpret_cast<const char*>(file->data()), file->size());
  const size_t start = list.find("\nPackage: openmpi-bin\n");
  if (start == list.npos) return "";
  const std::string_view section = list.substr(start, list.find("\n\n", start) - start);
  constexpr std::string_view kKey = "\nVersion: ";
  const size_t at = section.find(kKey);
  if (at == section.npos || section.find("\nStatus: install ok installed") == section.npos) {
    return "";
  }
  const std::string_view rest = section.substr(at + kKey.size());
  const std::string_view version = rest.substr(0, rest.find('\n'));
  const size_t epoch = version.find(':');
  const size_t upstream = epoch == version.npos ? 0 : epoch + 1;
  return std::string(version.substr(upstream, version.find_last_of('-') - upstream));
}

// The version of an Open MPI in a folder of its own.
std::string header_version(const fs::path& bin) {
  const std::string header = (bin.parent_path() / "include/mpi.h").string();
  return version_in(header, {"OMPI_MAJOR_VERSION", "OMPI_MINOR_VERSION", "OMPI_RELEASE_VERSION"});
}

// The version by files; "" if only mpirun itself can tell, as for a script of that name.
std::string version_of_files(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  const std::string name = real.filename().string();
  if (failed || (name != "orterun" && name != "prterun" && name != "prte")) return "";
  const std::string version =
      real.parent_path() == "/usr/bin" ? package_version() : header_version(real.parent_path());
  return version.empty() ? "" : "mpirun (Open MPI) " + version;
}

}  // namespace

MpiInfo mpi_info(const std::vector<std::string>& names) {
  MpiInfo mpi;
  for (const std::string& name : names) {
    mpi.path = find_in_path(name);
    if (!mpi.path.empty()) break;
  }
  if (mpi.path.empty()) return mpi;
  mpi.version = version_of_files(mpi.path);
  if (mpi.version.empty()) {
    const std::string text =
        run_and_read({mpi.path, "--version"}, std::chrono::seconds(5)).value_or("");
    mpi.version = text.substr(0, text.find('\n'));
  }
  return mpi;
}

std::string describe(const MpiInfo& mpi) {
  if (mpi.path.empty()) return "mpirun not found in PATH (Debian: apt install openmpi-bin)";
  if (mpi.version.empty()) return mpi.path + ", which does not answer --version";
  return mpi.version + ", " + mpi.path;
}

}  // namespace coupler::cli
