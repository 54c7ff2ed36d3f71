#include "rendezvous/process_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace coupler {
namespace {

struct Status {
  char state = 0;
  std::string started;  // empty where there is no such process
};

Status status_of(long pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto name_end = text.rfind(')');  // the name may hold anything, spaces too
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream fields(text.substr(name_end + 1));
  Status status;
  fields >> status.state;
  for (int number = 4; number <= 22 && fields >> status.started; ++number) {
  }
  return fields ? status : Status{};
}

}  // namespace

ProcessIdentity own_identity() { return identity_of(::getpid()); }

ProcessIdentity identity_of(long pid) { return {pid, status_of(pid).started}; }

char state_of(const ProcessIdentity& process) {
  const Status status = status_of(process.pid);
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

}  // namespace coupler
