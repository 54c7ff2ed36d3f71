// Log lines on standard error, filtered by COUPLER_LOG. Thread-safe: a line is one write.
//
// COUPLER_LOG=debug sets the level of all components, COUPLER_LOG=comm=trace,plugin=debug that of
// some. Levels are trace, debug, info, warning, error; the default is warning. The variable is read
// once, at the first call. Lines read "[coupler rank 1 comm] text"; the rank appears after
// set_log_rank was called.
#pragma once

#include <coupler/logging.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace coupler {

// Cheap (a look into a small map, usually empty): guard the formatting of messages with it.
bool log_enabled(LogLevel level, std::string_view component);
void log(LogLevel level, std::string_view component, std::string_view message);
void set_log_rank(int rank);
// -1 if this is the only process or no rank was set yet.
int log_rank_of_process();

// LogFilter: the parsed value of COUPLER_LOG. Plain data, immutable once parsed.
struct LogFilter {
  LogLevel all = LogLevel::kWarning;
  std::map<std::string, LogLevel, std::less<>> components;

  bool allows(LogLevel level, std::string_view component) const;
};

// Entries that cannot be parsed are skipped and described in complaint, one line each.
LogFilter parse_log_filter(std::string_view text, std::string& complaint);

}  // namespace coupler
