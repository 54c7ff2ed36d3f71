#include "log/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "log/filter.h"

namespace coupler {
namespace {

std::atomic<int> log_rank{-1};

// One write for the whole line, so that lines of threads and ranks that share a pipe do not mix; a
// pipe may still take it in parts.
void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // standard error is closed: there is nobody to tell
    text.remove_prefix(static_cast<size_t>(written));
  }
}

LogFilter read_environment() {
  const char* text = std::getenv("COUPLER_LOG");
  std::string complaint;
  LogFilter filter = parse_log_filter(text == nullptr ? "" : text, complaint);
  if (!complaint.empty()) write_all(complaint);
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
  write_all(line);
  errno = saved_errno;
}

void set_log_rank(int rank) { log_rank.store(rank, std::memory_order_relaxed); }

}  // namespace coupler
