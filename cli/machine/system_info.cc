#include "cli/machine/system_info.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/units.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/small_files.h"

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

std::string own_program() {
  std::error_code failed;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", failed);
  return failed ? kUnknown : path.string();
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
  return fmt::format("{}, {} available", size_text(memory_fact("MemTotal")),
                     size_text(memory_fact("MemAvailable")));
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

}  // namespace coupler::cli
