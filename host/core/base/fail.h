// Shorthand for the Errors that many callers throw, and for errno's message. Plain functions,
// [any-thread].
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Throws Error(kConfig). subject: the key, variable or file concerned.
[[noreturn]] void fail_config(const std::string& message, std::string_view subject,
                              std::string_view hint = "");

// Throws Error(kInvalidArgument). subject: the argument concerned.
[[noreturn]] void fail_argument(const std::string& message, std::string_view subject,
                                std::string_view hint);

// errno's message for the call that has just failed: "No such file or directory".
std::string last_failure();

}  // namespace coupler
