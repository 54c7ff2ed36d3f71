#include "cli/doctor/checks.h"

#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "cli/text/output.h"

namespace coupler::cli {

const char* to_string(Level level) {
  constexpr const char* kNames[] = {"ok", "note", "warning", "error"};
  return kNames[static_cast<size_t>(level)];
}

Finding finding_of(const Error& error, const std::string& why, const std::string& otherwise) {
  const std::string hint = one_line(error.detail().hint);
  return {Level::kError, one_line(without_hint(error.what())), why, hint.empty() ? otherwise : hint,
          error.exit_code()};
}

std::string install_command(const std::string& packages) {
  const std::string sudo = geteuid() == 0 ? "" : "sudo ";
  if (!find_in_path("apt-get").empty()) return sudo + "apt-get install " + packages;
  return "install the equivalent of Debian's " + packages;
}

}  // namespace coupler::cli
