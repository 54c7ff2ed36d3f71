// Logger: writes a program's own log lines, with the rank, filtered like Coupler's by COUPLER_LOG
// ("COUPLER_LOG=info", "COUPLER_LOG=train=debug"; default warning). Copies are cheap. Thread-safe,
// except with in_order.
//
//   const auto logger = coupler::get_logger("train");
//   logger.info("epoch " + std::to_string(epoch));
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// The level of a line. Lines below the level set by COUPLER_LOG (default warning) are not written.
enum class LogLevel { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

// Which processes write a line.
struct LogOptions {
  // Whether only rank 0 writes it.
  bool main_process_only = true;
  // Writes every process's line, in rank order. Collective: all ranks must call it, even if the
  // line is filtered out. Launchers that forward output of several machines, such as mpirun, may
  // reorder lines.
  bool in_order = false;
};

class Logger {
 public:
  // name: the component, for which COUPLER_LOG can set a separate level.
  explicit Logger(std::string name) : name_(std::move(name)) {}

  // Whether lines of this level are written; check it before formatting an expensive one.
  bool enabled(LogLevel level) const;

  // Writes a line to standard error if the level is enabled.
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
  // Writes a warning unless this process has written the same one before.
  void warning_once(std::string_view message, const LogOptions& options = {}) const;

 private:
  std::string name_;
};

// Returns a Logger with that name; cheap.
inline Logger get_logger(std::string name) { return Logger(std::move(name)); }

}  // namespace coupler
