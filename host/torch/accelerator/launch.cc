#include <coupler/launch.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <typeinfo>

#include "accelerator/launch_call.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "rendezvous/process_info.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using detail::EncodedObject;
using detail::LaunchedFunction;
using detail::ObjectBytes;

// Filled before main starts, and by libraries that are loaded later.
struct LaunchFunctions {
  std::mutex mutex;
  std::map<std::string, LaunchedFunction> functions;
  std::map<void (*)(), std::string> names;
  std::string twice;  // a name that was given to two functions
};
LaunchFunctions& launch_functions() {
  static LaunchFunctions all;
  return all;
}

// Whether this process is a rank; set by enter_launched.
bool inside_launch = false;

Error usage(const std::string& subject, const std::string& problem, const std::string& hint) {
  return {ErrorCode::kUsage, "launch: " + problem, {.subject = subject, .hint = hint}};
}

LaunchedFunction function_of(const std::string& name) {
  const std::lock_guard lock(launch_functions().mutex);
  const auto found = launch_functions().functions.find(name);
  if (found != launch_functions().functions.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, function] : launch_functions().functions) known.push_back(other);
  const std::string nearest = nearest_name(name, known);
  throw usage(name,
              fmt::format("no function is registered as '{}'{}; registered functions: {}", name,
                          nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
                          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
              fmt::format("register it at namespace scope: const coupler::Launchable "
                          "launchable_{0}(\"{0}\", {0});",
                          name));
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Converts an exception that leaves a rank's function.
Error as_error(const std::string& function, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorCode::kAborted,
            fmt::format("{} threw {}: {}", function, typeid(error).name(), error.what()),
            {.subject = function}};
  } catch (...) {
    return {ErrorCode::kAborted,
            fmt::format("{} threw an exception not derived from std::exception", function),
            {.subject = function}};
  }
}

// This process's rank; 0 if the launcher's variables do not determine it.
int own_rank() {
  try {
    return rendezvous::detect_process().rank;
  } catch (const Error&) {
    return 0;
  }
}

[[noreturn]] void run_rank(const LaunchCall& call) {
  int code = 0;
  std::string function = "launch";
  try {
    function = call.function();
    const EncodedObject result = function_of(function)(call.arguments());
    if (!result.problem.empty())
      fail_argument(
          fmt::format("launch: the result of {} cannot be sent: {}", function, result.problem),
          function);
    if (own_rank() == 0) call.write_result(result.bytes);
  } catch (...) {
    const Error error = as_error(function, std::current_exception());
    report_error(error.what());
    call.write_failure({.rank = own_rank(), .when = now(), .error = error});
    code = error.exit_code();
  }
  std::exit(code);
}

// The coupler program that came with this library.
std::string coupler_program() {
  Dl_info info;
  std::string looked;
  if (dladdr(reinterpret_cast<const void*>(&coupler_program), &info) != 0) {
    const fs::path own = fs::absolute(info.dli_fname).parent_path();
    for (const char* folder : {"../bin", "../../bin"}) {
      const fs::path program = (own / folder / "coupler").lexically_normal();
      if (is_program(program)) return program;
      looked += program.string() + ", ";
    }
  }
  if (std::string found = find_in_path("coupler"); !found.empty()) return found;
  throw Error(
      ErrorCode::kIo,
      fmt::format("launch: the coupler program, which starts processes, is neither at {}nor "
                  "in PATH",
                  looked),
      {.subject = "coupler", .hint = "install it next to libcoupler, or add it to PATH"});
}

// This process's executable. Throws if its path no longer leads to it: ranks would run another
// program.
std::string own_program() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code failed;
  const std::string path = fs::read_symlink(kSelf, failed).string();
  if (!failed && fs::equivalent(path, kSelf, failed)) return path;
  throw Error(ErrorCode::kIo,
              fmt::format("launch: the file of this program was replaced or removed since it "
                          "started: {}",
                          path),
              {.subject = path, .hint = "restart the program"});
}

std::vector<std::string> command_of(const LaunchOptions& options, const LaunchCall& call) {
  std::vector<std::string> words = {coupler_program(),
                                    "launch",
                                    "-n",
                                    std::to_string(options.processes),
                                    "--outcome",
                                    fmt::format("/proc/self/fd/{}", call.outcome_file())};
  if (!options.config.empty()) words.insert(words.end(), {"--config", options.config});
  for (const std::string& override : options.overrides) words.insert(words.end(), {"-o", override});
  words.push_back(options.program.empty() ? own_program() : fs::absolute(options.program).string());
  return words;
}

// Returns the exit status as waitpid gives it. Empty if this process does not get its children's
// status, because it ignores SIGCHLD or waits for all of them elsewhere. If this process ends
// first, the launcher ends the ranks.
std::optional<int> run_and_wait(const std::vector<std::string>& command, const LaunchCall& call) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const std::string variable = fmt::format("{}={}", kCallFile, call.path());
  std::vector<char*> environment = {const_cast<char*>(variable.c_str())};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  sigset_t no_signals;
  sigemptyset(&no_signals);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // Only system calls are safe here: other threads may have held any lock.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    // Ranks inherit neither this program's open files nor this thread's signal mask.
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    fcntl(call.outcome_file(), F_SETFD, 0);
    sigprocmask(SIG_SETMASK, &no_signals, nullptr);
    execve(words[0], words.data(), environment.data());
    _exit(127);
  }
  if (child < 0) throw Error(ErrorCode::kIo, "launch: cannot fork: " + errno_message());
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return std::nullopt;
  }
  return status;
}

// The launcher's report on a rank that could not report its own failure.
std::optional<Error> outcome_of(const LaunchCall& call) {
  const auto outcome = nlohmann::json::parse(call.outcome(), nullptr, /*allow_exceptions=*/false);
  if (!outcome.is_object() || !outcome.contains("rank")) return std::nullopt;
  const int rank = outcome["rank"].get<int>();
  return Error(ErrorCode::kPeerLost,
               fmt::format("launch: rank {} {}", rank, outcome["how"].get<std::string>()),
               {.rank = rank, .hint = "see what it wrote to standard error"});
}

}  // namespace

void detail::register_launchable(const std::string& name, void (*identity)(),
                                 LaunchedFunction function) {
  LaunchFunctions& all = launch_functions();
  const std::lock_guard lock(all.mutex);
  if (!all.functions.emplace(name, std::move(function)).second) all.twice = name;
  all.names.emplace(identity, name);
}

std::string detail::launchable_name(void (*identity)()) {
  const std::lock_guard lock(launch_functions().mutex);
  const auto found = launch_functions().names.find(identity);
  if (found != launch_functions().names.end()) return found->second;
  throw usage("launch", "the function is not registered, so new processes could not find it",
              "register it at namespace scope: const coupler::Launchable "
              "launchable_train(\"train\", train);");
}

void enter_launched() {
  const char* file = std::getenv(kCallFile);
  if (file == nullptr) return;
  install_terminate_handler();
  const LaunchCall call(file);
  unsetenv(kCallFile);  // programs that a rank starts are not ranks
  inside_launch = true;
  run_rank(call);
}

ObjectBytes detail::run_launch(const LaunchOptions& options, const std::string& function,
                               const EncodedObject& arguments) {
  if (const char* file = std::getenv(kCallFile); file != nullptr) {
    const Error error = usage("enter_launched",
                              "this process was started by launch, but its main reached launch "
                              "itself",
                              "call coupler::enter_launched() first in main");
    LaunchCall(file).write_failure({.rank = own_rank(), .when = now(), .error = error});
    throw error;
  }
  if (inside_launch || own_rank() != 0 || rendezvous::detect_process().world_size > 1)
    throw usage("launch", "this process is already a rank of a job", "call launch outside of it");
  if (options.processes < 1)
    fail_argument(fmt::format("launch: processes is {}", options.processes), "processes",
                  "request at least one");
  {
    const std::lock_guard lock(launch_functions().mutex);
    if (!launch_functions().twice.empty())
      throw usage(launch_functions().twice,
                  fmt::format("two functions are registered as '{}'", launch_functions().twice),
                  "give each its own name");
  }
  if (options.program.empty()) function_of(function);  // throws here rather than in each rank
  if (!arguments.problem.empty())
    fail_argument(
        fmt::format("launch: the arguments of {} cannot be sent: {}", function, arguments.problem),
        function);
  const LaunchCall call(function, arguments.bytes);
  const std::vector<std::string> command = command_of(options, call);
  std::cout << fmt::format("Launching training on {} process{}.\n", options.processes,
                           options.processes == 1 ? "" : "es")
            << std::flush;
  const std::optional<int> status = run_and_wait(command, call);
  const auto failure = call.failure();
  const auto outcome = outcome_of(call);
  const auto result = call.result();
  if (status ? *status == 0 : result && !failure && !outcome) {
    if (result) return *result;
    throw usage("enter_launched",
                fmt::format("{} exited without returning from {}", command.back(), function),
                "call coupler::enter_launched() first in its main, and let the function return "
                "instead of exiting");
  }
  // A killed rank reports nothing, and the other ranks report that they lost it.
  if (failure &&
      (!failure->is_consequence() || !outcome || outcome->detail().rank == failure->rank))
    throw Error(failure->error);
  if (outcome) throw Error(*outcome);
  const std::string how =
      !status ? "`coupler launch` failed"
      : WIFSIGNALED(*status)
          ? fmt::format("the launcher was killed by signal {}", WTERMSIG(*status))
          : fmt::format("`coupler launch` exited with {}", WEXITSTATUS(*status));
  throw Error(ErrorCode::kAborted, "launch: " + how,
              {.subject = function, .hint = "see what it wrote to standard error"});
}

}  // namespace coupler
