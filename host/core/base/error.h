// Splits an Error's what() into message and hint, for lists and tables of problems. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Separates the message from the hint in an Error's what().
inline constexpr std::string_view kHintMark = "\n  hint: ";

std::string without_hint(const std::string& text);
std::string hint_in(const std::string& text);  // empty if there is none

// Writes an error that ends the process to standard error: "coupler: error: <text>".
// [any-thread]; allocates nothing, so that it works while the process is crashing.

void report_error(std::string_view text) noexcept;

// Whether standard error's last line is unfinished (a progress bar): an error then starts a new
// line.
void set_error_line_open(bool open) noexcept;

// Shorthand for the Errors that many callers throw, and for errno's message. Plain functions,
// [any-thread].

// Throws Error(kConfig). subject: the key, variable or file concerned.
[[noreturn]] void fail_config(const std::string& message, std::string_view subject,
                              std::string_view hint = "");

// Throws Error(kInvalidArgument). subject: the argument concerned.
[[noreturn]] void fail_argument(const std::string& message, std::string_view subject,
                                std::string_view hint = "");

// Throws Error(kUsage). subject: the call, or the object that it was made on.
[[noreturn]] void fail_usage(const std::string& message, std::string_view subject,
                             std::string_view hint);

// errno's message for the call that has just failed: "No such file or directory".
std::string errno_message();

}  // namespace coupler
