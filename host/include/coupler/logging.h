// Logger: a program's own log lines, with the rank, filtered like Coupler's by COUPLER_LOG
// ("COUPLER_LOG=info", "COUPLER_LOG=train=debug"; default warning). Copies are cheap. Thread-safe,
// but for in_order.
//
//   const auto logger = coupler::get_logger("train");
//   logger.info("epoch " + std::to_string(epoch));
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Of a line; those below the level that COUPLER_LOG sets (warning by default) are not written.
enum class LogLevel { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

// Which processes write a line.
struct LogOptions {
  // Whether rank 0 alone writes it.
  bool main_process_only = true;
  // Every process's line, written in the order of ranks. Collective: all call it, whatever is
  // filtered. What forwards the output of several machines, as mpirun does, may mix lines again.
  bool in_order = false;
};

class Logger {
 public:
  // name: the component, by which COUPLER_LOG can choose a level of its own.
  explicit Logger(std::string name) : name_(std::move(name)) {}

  // Whether a line of this level is written at all; worth asking before formatting a long one.
  bool enabled(LogLevel level) const;

  // Writes a line to standard error, where the level is enabled.
  void log(LogLevel level, std::string_view message, const LogOptions& options = {}) const;
  void debug(std::string_view message, const LogOptions& options = {}) const {
    log(LogLevel::kDebug, message, options);
  }
  void info(std::string_view message, const LogOptions& options = {}) const {
    log(LogLevel::kInfo, message, options);
  }
  void warning(std::string_view message, const LogOptions& options = {}) const {
    log(LogLevel::kWarning, message, options);
  }
  void error(std::string_view message, const LogOptions& options = {}) const {
    log(LogLevel::kError, message, options);
  }
  // A warning that this process has written before is not written again.
  void warning_once(std::string_view message, const LogOptions& options = {}) const;

 private:
  std::string name_;
};

// A Logger of that name; cheap to make.
inline Logger get_logger(std::string name) { return Logger(std::move(name)); }

}  // namespace coupler
