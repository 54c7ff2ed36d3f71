#include <coupler/logging.h>
#include <coupler/state.h>

#include <mutex>
#include <set>
#include <utility>

#include "base/log.h"

namespace coupler {

bool Logger::enabled(LogLevel level) const { return log_enabled(level, name_); }

void Logger::log(LogLevel level, std::string_view message, const LogOptions& options) const {
  PartialState state;
  if (!options.in_order) {
    if (!options.main_process_only || state.is_main_process()) coupler::log(level, name_, message);
    return;
  }
  for (int rank = 0; rank < state.world(); ++rank) {
    if (rank == state.rank()) coupler::log(level, name_, message);
    state.wait_for_everyone();
  }
}

void Logger::warning_once(std::string_view message, const LogOptions& options) const {
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> written;
  {
    const std::lock_guard lock(mutex);
    if (!written.emplace(name_, message).second) return;
  }
  warning(message, options);
}

}  // namespace coupler
