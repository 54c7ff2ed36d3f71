#include "base/fail.h"

#include <coupler/error.h>

#include <cerrno>
#include <system_error>

namespace coupler {
namespace {

[[noreturn]] void fail(ErrorCode code, const std::string& message, std::string_view subject,
                       std::string_view hint) {
  throw Error(code, message, {.subject = std::string(subject), .hint = std::string(hint)});
}

}  // namespace

void fail_config(const std::string& message, std::string_view subject, std::string_view hint) {
  fail(ErrorCode::kConfig, message, subject, hint);
}

void fail_argument(const std::string& message, std::string_view subject, std::string_view hint) {
  fail(ErrorCode::kInvalidArgument, message, subject, hint);
}

std::string last_failure() { return std::generic_category().message(errno); }

}  // namespace coupler
