#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/file_descriptor.h"
#include "base/text.h"

namespace coupler {

// Not a stream: reading fails if the process ends meanwhile, and a stream's iterators throw.
ProcessStatus status_of(long pid) {
  const UniqueFd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> bytes{};
  const ssize_t size = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  const std::string text(bytes.data(), size > 0 ? static_cast<size_t>(size) : 0);
  const auto name = text.find('(');
  const auto name_end = text.rfind(')');  // the name may contain anything, even spaces
  if (name == std::string::npos || name_end == std::string::npos) {
    return {};
  }
  ProcessStatus status{.name = text.substr(name + 1, name_end - name - 1)};
  std::istringstream fields(text.substr(name_end + 1));
  fields >> status.state >> status.parent;
  for (int number = 5; number <= 22 && fields >> status.started; ++number) {
  }
  return fields ? status : ProcessStatus{};
}

ProcessIdentity own_identity() { return identity_of(::getpid()); }

ProcessIdentity identity_of(long pid) { return {pid, status_of(pid).started}; }

char state_of(const ProcessIdentity& process) {
  const ProcessStatus status = status_of(process.pid);
  return status.started == process.started ? status.state : '\0';
}

bool is_alive(const ProcessIdentity& process) {
  return !process.started.empty() && state_of(process) != 0;
}

std::string machine_identity() {
  static const std::string identity = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string boot;
    file >> boot;
    struct stat space {};
    ::stat("/proc/self/ns/pid", &space);
    return fmt::format("{}:{}", boot, space.st_ino);
  }();
  return identity;
}

uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kibibytes = 0;
    if (word == "VmRSS:" && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

std::string environment_value(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

bool is_program(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string find_in_path(const std::string& program) {
  const std::string path = environment_value("PATH");
  if (path.empty()) return "";
  for (const std::string& folder : split(path, ':')) {
    std::string file = (folder.empty() ? "." : folder) + "/" + program;
    if (is_program(file)) return file;
  }
  return "";
}

}  // namespace coupler
