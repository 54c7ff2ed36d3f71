// LogFilter: the parsed value of COUPLER_LOG. Plain data, immutable once parsed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace coupler {

struct LogFilter {
  LogLevel all = LogLevel::kWarning;
  std::vector<std::pair<std::string, LogLevel>> components;
  LogLevel lowest = LogLevel::kWarning;  // of all the above: nothing below it is ever logged

  bool allows(LogLevel level, std::string_view component) const;
};

// Entries that cannot be parsed are skipped and described in complaint, one line each.
LogFilter parse_log_filter(std::string_view text, std::string& complaint);

}  // namespace coupler
