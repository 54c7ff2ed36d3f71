// Handles uncaught exceptions of any thread.
#include <coupler/error.h>
#include <cxxabi.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <typeinfo>

#include "base/report.h"

namespace coupler {
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

}  // namespace coupler
