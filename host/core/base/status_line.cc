#include "base/status_line.h"

#include <coupler/processes.h>
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/file_descriptor.h"

namespace coupler {
namespace {

constexpr std::string_view kWipe = "\r\x1b[K";
constexpr std::string_view kWipeRest = "\x1b[K";

struct StatusLine {
  std::mutex mutex;
  std::string text;  // as drawn; empty if there is none
};

StatusLine& status() {
  // Never destroyed: threads may log while the process exits.
  static auto* const instance = new StatusLine;
  return *instance;
}

// A single write if the system allows it, so that lines of threads and ranks that share a pipe do
// not mix; a pipe may still take it in parts.
void write_to_terminal(std::string_view text) { write_fully(STDERR_FILENO, text); }

}  // namespace

void show_status_line(std::string text) {
  StatusLine& line = status();
  const std::lock_guard lock(line.mutex);
  write_to_terminal(fmt::format("\r{}{}", text, kWipeRest));
  line.text = std::move(text);
  set_error_line_open(!line.text.empty());
}

void hide_status_line() {
  StatusLine& line = status();
  const std::lock_guard lock(line.mutex);
  if (line.text.empty()) return;
  write_to_terminal(kWipe);
  line.text.clear();
  set_error_line_open(false);
}

void leave_status_line(std::string_view text) {
  StatusLine& line = status();
  const std::lock_guard lock(line.mutex);
  write_to_terminal(fmt::format("\r{}{}\n", text, kWipeRest));
  line.text.clear();
  set_error_line_open(false);
}

void write_error_lines(std::string_view lines) {
  StatusLine& line = status();
  const std::lock_guard lock(line.mutex);
  if (line.text.empty()) {
    write_to_terminal(lines);
  } else {
    write_to_terminal(fmt::format("{}{}{}", kWipe, lines, line.text));
  }
}

void write_output_lines(std::string_view lines) {
  StatusLine& line = status();
  const std::lock_guard lock(line.mutex);
  if (!line.text.empty()) write_to_terminal(kWipe);
  std::cout << lines << std::flush;
  if (!line.text.empty()) write_to_terminal(line.text);
}

void detail::print_line(const std::string& line) { write_output_lines(line); }

}  // namespace coupler
