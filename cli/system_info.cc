#include "system_info.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "run_and_read.h"
#include "torch_root.h"

namespace coupler::cli {
namespace {

constexpr const char* kUnknown = "unknown";

// What follows the first line's start in a file of NAME=value or "name : value" lines.
std::optional<std::string> value_in(const std::string& file, std::string_view start) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, start.size(), start) != 0) continue;
    std::string value = line.substr(start.size());
    value.erase(0, value.find_first_not_of(" \t:=\"'"));
    value.erase(value.find_last_not_of(" \t\"'") + 1);
    return value;
  }
  return std::nullopt;
}

std::string gibibytes(const std::optional<std::string>& kibibytes) {
  if (!kibibytes) return kUnknown;
  return fmt::format("{:.1f} GiB", std::strtod(kibibytes->c_str(), nullptr) / (1024.0 * 1024.0));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "2.11.0+cu130" of version.py, or the three numbers of version.h.
std::optional<std::string> torch_version(const std::string& root) {
  if (auto version = value_in(root + "/version.py", "__version__")) return version;
  const std::string header = root + "/include/torch/headeronly/version.h";
  const auto major = value_in(header, "#define TORCH_VERSION_MAJOR");
  const auto minor = value_in(header, "#define TORCH_VERSION_MINOR");
  const auto patch = value_in(header, "#define TORCH_VERSION_PATCH");
  if (!major || !minor || !patch) return std::nullopt;
  return fmt::format("{}.{}.{}", *major, *minor, *patch);
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
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const std::string count = sched_getaffinity(0, sizeof usable, &usable) == 0
                                ? std::to_string(CPU_COUNT(&usable))
                                : kUnknown;
  return fmt::format("{}, {} cores, {} usable",
                     value_in("/proc/cpuinfo", "model name").value_or(kUnknown),
                     sysconf(_SC_NPROCESSORS_ONLN), count);
}

std::string memory() {
  std::string text = gibibytes(value_in("/proc/meminfo", "MemTotal")) + ", " +
                     gibibytes(value_in("/proc/meminfo", "MemAvailable")) + " available";
  const auto limit = value_in("/sys/fs/cgroup/memory.max", "");
  if (limit && *limit != "max") text += ", limited to " + *limit + " bytes";
  return text;
}

std::string compiler() {
#ifdef __clang__
  return "clang " __VERSION__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string open_mpi() {
  const std::string path = find_in_path("mpirun");
  if (path.empty()) return "mpirun not found in PATH (Debian: apt install openmpi-bin)";
  const auto text = run_and_read({path, "--version"}, std::chrono::seconds(5));
  return text ? first_line(*text) + ", " + path : path + ", which does not answer --version";
}

std::string gpu_driver() {
  return value_in("/proc/driver/nvidia/version", "NVRM version").value_or("none");
}

std::string libtorch() {
  const std::string root = torch_root();
  const auto version = torch_version(root);
  if (!root.empty() && version) return *version + ", " + root;
  return "none in " + expected_torch_root() +
         " (run coupler setup-torch, or set COUPLER_TORCH_ROOT)";
}

}  // namespace coupler::cli
