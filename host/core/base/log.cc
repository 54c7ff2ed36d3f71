#include "base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <string>

#include "base/process.h"
#include "base/status_line.h"
#include "base/text.h"

namespace coupler {
namespace {

std::atomic<int> log_rank{-1};

LogFilter read_environment() {
  std::string complaint;
  LogFilter filter = parse_log_filter(environment_value("COUPLER_LOG"), complaint);
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

namespace {

constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warning", "error"};

std::optional<LogLevel> find_level(std::string_view name) {
  const auto* found = std::find(kLevels.begin(), kLevels.end(), name);
  if (found == kLevels.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLevels.begin());
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

bool LogFilter::allows(LogLevel level, std::string_view component) const {
  const auto found = components.find(component);
  return level >= (found == components.end() ? all : found->second);
}

LogFilter parse_log_filter(std::string_view text, std::string& complaint) {
  LogFilter filter;
  for (const std::string& part : split(text, ',')) {
    const std::string_view entry = trim(part);
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    const bool for_component = equals != std::string_view::npos;
    const std::string_view component = for_component ? trim(entry.substr(0, equals)) : "";
    const std::string_view name = for_component ? trim(entry.substr(equals + 1)) : entry;
    const auto level = find_level(name);
    if (!level || (for_component && component.empty())) {
      complaint += "coupler: COUPLER_LOG: '" + std::string(entry) + "' is ignored: ";
      complaint += level ? "it names no component" : "'" + std::string(name) + "' is not a level";
      complaint +=
          "; valid levels: trace, debug, info, warning, error"
          " (COUPLER_LOG=debug, or COUPLER_LOG=comm=trace,plugin=debug)\n";
    } else if (for_component) {
      filter.components.insert_or_assign(std::string(component), *level);
    } else {
      filter.all = *level;
    }
  }
  return filter;
}

}  // namespace coupler
