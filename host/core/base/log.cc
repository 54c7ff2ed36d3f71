#include "base/log.h"

#include <atomic>
#include <cerrno>
#include <string>

#include "base/environment.h"
#include "base/filter.h"
#include "base/status_line.h"

namespace coupler {
namespace {

std::atomic<int> log_rank{-1};

LogFilter read_environment() {
  std::string complaint;
  LogFilter filter = parse_log_filter(environment_text("COUPLER_LOG"), complaint);
  if (!complaint.empty()) write_error_lines(complaint);
  return filter;
}

const LogFilter& filter() {
  // Never destroyed: threads may log while the process exits.
  static const LogFilter* const instance = new LogFilter(read_environment());
  return *instance;
}

}  // namespace

bool log_enabled(LogLevel level, std::string_view component) {
  return filter().allows(level, component);
}

void log(LogLevel level, std::string_view component, std::string_view message) {
  if (!log_enabled(level, component)) return;
  const int saved_errno = errno;
  const int rank = log_rank.load(std::memory_order_relaxed);
  std::string line = "[coupler ";
  line.reserve(line.size() + component.size() + message.size() + 24);
  if (rank >= 0) line.append("rank ").append(std::to_string(rank)).append(" ");
  line.append(component).append("] ").append(message).append("\n");
  write_error_lines(line);
  errno = saved_errno;
}

int log_rank_of_process() { return log_rank.load(std::memory_order_relaxed); }

void set_log_rank(int rank) { log_rank.store(rank, std::memory_order_relaxed); }

}  // namespace coupler
