#include "rendezvous/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace coupler {
namespace {

// Empty where there is no such process.
std::string start_time(long pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto name_end = text.rfind(')');  // the name may hold anything, spaces too
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
  }
  return fields ? field : std::string();
}

}  // namespace

ProcessIdentity own_identity() { return {::getpid(), start_time(::getpid())}; }

bool is_alive(const ProcessIdentity& process) {
  const auto started = start_time(process.pid);
  return !started.empty() && started == process.started;
}

}  // namespace coupler
