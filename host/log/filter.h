// LogFilter: the text of COUPLER_LOG, understood. Plain data, immutable once parsed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "log/log.h"

namespace coupler {

struct LogFilter {
  LogLevel all = LogLevel::kWarning;
  std::vector<std::pair<std::string, LogLevel>> components;
  LogLevel lowest = LogLevel::kWarning;  // of all of these: below it nothing is ever logged

  bool allows(LogLevel level, std::string_view component) const;
};

// Entries that cannot be understood are left out and described in complaint, one line each.
LogFilter parse_log_filter(std::string_view text, std::string& complaint);

}  // namespace coupler
