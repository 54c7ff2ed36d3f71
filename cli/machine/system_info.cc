#include "cli/machine/system_info.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/mapped_file.h"
#include "base/process.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/text_values.h"
#include "cli/process/capture_output.h"

namespace coupler::cli {

namespace {

constexpr const char* kUnknown = "unknown";

std::string size_text(std::optional<uint64_t> bytes) {
  return bytes ? format_byte_size(*bytes) : kUnknown;
}

}  // namespace

std::string operating_system() {
  utsname names = {};
  if (uname(&names) != 0) return kUnknown;
  return fmt::format("{}, {} {} {}, glibc {}",
                     value_in("/etc/os-release", "PRETTY_NAME=").value_or(kUnknown), names.sysname,
                     names.release, names.machine, gnu_get_libc_version());
}

std::string processor() {
  return fmt::format("{}, {} cores, {} usable",
                     value_in("/proc/cpuinfo", "model name").value_or(kUnknown),
                     sysconf(_SC_NPROCESSORS_ONLN), usable_cpus().size());
}

std::string numa() {
  const std::string folder = "/sys/devices/system/node";
  const std::vector<int> nodes = parse_cpu_list(first_line_of(folder + "/online").value_or(""));
  if (nodes.empty()) return kUnknown;
  std::string text = fmt::format("{} node{}:", nodes.size(), nodes.size() == 1 ? "" : "s");
  for (const int node : nodes) {
    text += fmt::format(
        "{} {}", node == nodes.front() ? "" : ",",
        first_line_of(fmt::format("{}/node{}/cpulist", folder, node)).value_or(kUnknown));
  }
  return text;
}

std::string memory() {
  return fmt::format("{}, {} available", size_text(meminfo("MemTotal")),
                     size_text(meminfo("MemAvailable")));
}

std::string shared_memory() {
  struct statvfs room = {};
  if (statvfs("/dev/shm", &room) != 0) return "no /dev/shm";
  return fmt::format("{}, {} free, /dev/shm", format_byte_size(room.f_blocks * room.f_frsize),
                     format_byte_size(room.f_bavail * room.f_frsize));
}

std::string compiler() {
#ifdef __clang__
  return "clang " __VERSION__;
#else
  return "g++ " __VERSION__;
#endif
}

namespace {

namespace fs = std::filesystem;

// "580.65.06" from "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build".
std::string version_word(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool digits = std::all_of(
        word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (digits && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace

GpuInfo gpu_info(const std::string& root) {
  GpuInfo gpu;
  const std::string driver = root + "/proc/driver/nvidia";
  if (const auto line = value_in(driver + "/version", "NVRM version")) {
    gpu.driver = version_word(*line);
    if (gpu.driver.empty()) gpu.driver = *line;
  }
  for (const fs::path& folder : entries_of(driver + "/gpus")) {
    gpu.gpus.push_back(
        value_in((folder / "information").string(), "Model").value_or("unknown model"));
  }
  for (const fs::path& device : entries_of(root + "/sys/bus/pci/devices")) {
    // 0x03: display controllers, including 3D controllers without a display.
    const bool display =
        first_line_of((device / "class").string()).value_or("").rfind("0x03", 0) == 0;
    if (display && first_line_of((device / "vendor").string()) == "0x10de") ++gpu.cards;
  }
  return gpu;
}

std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  const size_t count = entries_of("/proc/driver/nvidia/gpus").size();
  const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (count > 0 && chosen != nullptr) {
    for (const std::string& name : split(chosen, ',')) {
      if (name.empty() || name == "-1") break;
      gpus.push_back(name);
    }
    return gpus;
  }
  for (size_t i = 0; i < count; ++i) gpus.push_back(std::to_string(i));
  return gpus;
}

std::string describe_driver(const GpuInfo& gpu) { return gpu.driver.empty() ? "none" : gpu.driver; }

std::string describe_gpus(const GpuInfo& gpu) {
  std::map<std::string, int> counts;
  for (const std::string& name : gpu.gpus) ++counts[name];
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  }
  if (text.empty() && gpu.cards > 0) return fmt::format("{} NVIDIA, no driver loaded", gpu.cards);
  return text.empty() ? "none" : text;
}

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
        capture_output({mpi.path, "--version"}, std::chrono::seconds(5)).value_or("");
    mpi.version = text.substr(0, text.find('\n'));
  }
  return mpi;
}

std::string describe(const MpiInfo& mpi) {
  if (mpi.path.empty()) return "mpirun not found in PATH (Debian: apt install openmpi-bin)";
  if (mpi.version.empty()) return mpi.path + ", which does not answer --version";
  return mpi.version + ", " + mpi.path;
}

bool is_open_mpi(const std::string& version) {
  constexpr std::array kNames = {"Open MPI", "OpenRTE", "PRRTE"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* name) { return version.find(name) != std::string::npos; });
}

}  // namespace coupler::cli
