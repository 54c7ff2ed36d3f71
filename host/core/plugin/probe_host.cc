#include "plugin/probe_host.h"

#include <algorithm>

#include "base/log.h"

namespace coupler {
namespace {

void log_line(void*, db_severity severity, const char* component, const char* message) {
  const auto level =
      static_cast<LogLevel>(std::clamp<int32_t>(severity, DB_LOG_TRACE, DB_LOG_ERROR));
  log(level, component != nullptr ? component : "plugin", message != nullptr ? message : "");
}

}  // namespace

const db_host& probe_host() {
  static const db_host host = {sizeof(db_host), DB_ABI_MAJOR, DB_ABI_MINOR,
                               nullptr,         log_line,     nullptr};
  return host;
}

}  // namespace coupler
