#include "base/error.h"

#include <coupler/error.h>
#include <cxxabi.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>

namespace coupler {

std::string without_hint(const std::string& text) { return text.substr(0, text.find(kHintMark)); }

std::string hint_in(const std::string& text) {
  const size_t mark = text.find(kHintMark);
  return mark == std::string::npos ? "" : text.substr(mark + kHintMark.size());
}

namespace {

std::string with_hint(const std::string& message, const std::string& hint) {
  return hint.empty() ? message : message + std::string(kHintMark) + hint;
}

}  // namespace

std::string_view to_string(ErrorCode code) {
  // In the order of ErrorCode.
  constexpr std::array<std::string_view, 13> kNames = {
      "usage",     "configuration", "plugin",       "invalid argument", "unsupported",
      "mismatch",  "peer lost",     "timeout",      "aborted",          "input/output",
      "preempted", "internal",      "out of memory"};
  static_assert(kNames.size() == static_cast<size_t>(ErrorCode::kOutOfMemory) + 1);
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Error::Error(ErrorCode code, const std::string& message, ErrorDetail detail)
    : std::runtime_error(with_hint(message, detail.hint)),
      code_(code),
      detail_(std::move(detail)) {}

int Error::exit_code() const {
  switch (code_) {
    case ErrorCode::kUsage:
    case ErrorCode::kConfig:
      return 2;
    case ErrorCode::kPlugin:
      return 3;
    case ErrorCode::kMismatch:
    case ErrorCode::kPeerLost:
    case ErrorCode::kTimeout:
      return 4;
    case ErrorCode::kPreempted:
      return 75;
    default:
      return 1;
  }
}

namespace {

constexpr std::string_view kPrefix = "coupler: error: ";

std::atomic<bool> line_open{false};

iovec piece(std::string_view text) {
  // writev only reads, but its struct has no const.
  return {const_cast<char*>(text.data()), text.size()};
}

}  // namespace

void report_error(std::string_view text) noexcept {
  const int saved_errno = errno;
  std::array<iovec, 4> pieces = {piece("\n"), piece(kPrefix), piece(text), piece("\n")};
  size_t first = line_open.exchange(false) ? 0 : 1;
  while (first < pieces.size()) {
    ssize_t written =
        writev(STDERR_FILENO, &pieces[first], static_cast<int>(pieces.size() - first));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // standard error is gone
    while (first < pieces.size() && static_cast<size_t>(written) >= pieces[first].iov_len) {
      written -= static_cast<ssize_t>(pieces[first].iov_len);
      ++first;
    }
    if (first == pieces.size()) break;
    pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + written;
    pieces[first].iov_len -= static_cast<size_t>(written);
  }
  errno = saved_errno;
}

void set_error_line_open(bool open) noexcept { line_open.store(open, std::memory_order_relaxed); }

// Handles uncaught exceptions of any thread.

namespace {

// Another thread may hold a stream's lock indefinitely (one that waits for input holds stdin's),
// and flushing would block on it: after this time the process exits without flushing the rest.
constexpr unsigned kFlushSeconds = 1;

std::atomic<bool> ending{false};
std::atomic<int> final_code{1};
static_assert(std::atomic<int>::is_always_lock_free);

void end_now(int) { _exit(final_code.load()); }

void limit_the_rest_of_this_process() {
  struct sigaction action = {};
  action.sa_handler = end_now;
  sigaction(SIGALRM, &action, nullptr);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  alarm(kFlushSeconds);
}

std::string uncaught(const char* what) {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return what;
  int status = 0;
  char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string text = std::string("uncaught ") + (status == 0 ? readable : type->name());
  std::free(readable);
  return *what == '\0' ? text : text + ": " + what;
}

// Prints the exception being handled and returns its exit code.
int report_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    report_error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    report_error(uncaught(error.what()));
  } catch (...) {
    report_error(uncaught(""));
  }
  return 1;
}

void flush_output() {
  std::fflush(stdout);
  try {
    std::cout.flush();
    std::clog.flush();
  } catch (...) {  // a stream with exceptions enabled: its output is lost, the exit code is not
    report_error("standard output could not be flushed");
  }
  std::fflush(nullptr);
}

[[noreturn]] void handle_terminate() noexcept {
  if (ending.exchange(true)) {
    // Another thread is already ending the process (or this one failed while doing so). The alarm
    // bounds the wait.
    for (;;) pause();
  }
  limit_the_rest_of_this_process();
  if (std::current_exception()) {
    final_code = report_current_exception();
    flush_output();
    _exit(final_code);
  }
  report_error(
      "std::terminate was called without an exception (a joinable std::thread destroyed?)");
  flush_output();
  std::abort();  // a bug in the program: leave the core dump it would have left without us
}

}  // namespace

void install_terminate_handler() {
  static const std::terminate_handler previous = std::set_terminate(handle_terminate);
  static_cast<void>(previous);
}

namespace {

std::atomic<const char*> last_file{nullptr};
std::atomic<int> last_line{0};

}  // namespace

CallSite::CallSite(const char* file, int line) noexcept {
  last_file.store(file, std::memory_order_relaxed);
  last_line.store(line, std::memory_order_relaxed);
}

std::string CallSite::last() {
  const char* file = last_file.load(std::memory_order_relaxed);
  if (file == nullptr) return {};
  const char* slash = std::strrchr(file, '/');
  return fmt::format("{}:{}", slash == nullptr ? file : slash + 1,
                     last_line.load(std::memory_order_relaxed));
}

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

void fail_usage(const std::string& message, std::string_view subject, std::string_view hint) {
  fail(ErrorCode::kUsage, message, subject, hint);
}

std::string errno_message() { return std::generic_category().message(errno); }

}  // namespace coupler
