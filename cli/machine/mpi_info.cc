#include "cli/machine/mpi_info.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "cli/machine/small_files.h"
#include "cli/process/run_and_read.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// Debian's word for the installed package: its section of dpkg's list. "4.1.4" of "4.1.4-3+b1".
std::string package_version() {
  std::ifstream file("/var/lib/dpkg/status", std::ios::binary | std::ios::ate);
  if (!file) return "";
  // In one piece: by characters it takes longer than all else.
  std::string list(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0).read(list.data(), static_cast<std::streamsize>(list.size()));
  const size_t start = list.find("\nPackage: openmpi-bin\n");
  if (start == std::string::npos) return "";
  const std::string section = list.substr(start, list.find("\n\n", start) - start);
  constexpr std::string_view kKey = "\nVersion: ";
  const size_t at = section.find(kKey);
  if (at == std::string::npos || section.find("\nStatus: install ok installed") == section.npos) {
    return "";
  }
  const std::string version =
      section.substr(at + kKey.size(), section.find('\n', at + 1) - at - kKey.size());
  const size_t epoch = version.find(':');
  const size_t upstream = epoch == std::string::npos ? 0 : epoch + 1;
  return version.substr(upstream, version.find_last_of('-') - upstream);
}

// Of an Open MPI in a folder of its own.
std::string header_version(const fs::path& bin) {
  const std::string header = (bin.parent_path() / "include/mpi.h").string();
  return version_in(header, {"OMPI_MAJOR_VERSION", "OMPI_MINOR_VERSION", "OMPI_RELEASE_VERSION"});
}

// "" where only mpirun itself could say. A script by that name is somebody's own affair.
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
