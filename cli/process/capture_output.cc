#include "cli/process/capture_output.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/process.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr size_t kMaxOutput = 65536;

// Starts argv in its own process group, with standard output to write_end and the rest to
// /dev/null.
std::optional<pid_t> start_program(const std::vector<std::string>& argv, int write_end) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, argv[0].c_str(), &files, &attributes, argv_of(argv).data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return std::nullopt;
  return pid;
}

// Everything up to the end of the stream; null if the deadline passes first.
std::optional<std::string> read_until(int descriptor, Clock::time_point end) {
  std::string text;
  std::array<char, 4096> block;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd waiting = {descriptor, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t count = read(descriptor, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) return text;
    text.append(block.data(), static_cast<size_t>(count));
    if (text.size() > kMaxOutput) return std::nullopt;
  }
}

// The wait status. The program gets until `end` to exit and is then killed.
int wait_until(pid_t pid, Clock::time_point end) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() >= end) {
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    usleep(1000);
  }
  return status;
}

[[noreturn]] void fail_start(const std::string& name, const std::string& what,
                             const std::string& hint) {
  throw Error(ErrorCode::kUsage, fmt::format("the program '{}' {}", name, what),
              {.subject = name, .hint = hint});
}

}  // namespace

std::optional<std::string> capture_output(const std::vector<std::string>& argv,
                                          std::chrono::milliseconds deadline) {
  const Clock::time_point end = Clock::now() + deadline;
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const std::optional<pid_t> pid = start_program(argv, ends[1]);
  close(ends[1]);
  std::optional<std::string> text;
  if (pid) {
    text = read_until(ends[0], end);
    const int status = wait_until(*pid, text ? end : Clock::now());
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) text.reset();
  }
  close(ends[0]);
  return text;
}

std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) {
    std::string found = name.empty() ? "" : find_in_path(name);
    if (found.empty()) {
      fail_start(name, fmt::format("was not found in PATH ({})", environment_value("PATH")),
                 is_program("./" + name) ? fmt::format("it is in this folder: use ./{}", name)
                                         : "check the name, or give the program's path");
    }
    return found;
  }
  struct stat status {};
  if (::stat(name.c_str(), &status) != 0) {
    fail_start(name, fmt::format("cannot be started: {}", errno_message()), "check the path");
  }
  if (S_ISDIR(status.st_mode)) {
    fail_start(name, "is a folder", "give the path of an executable file");
  }
  if (!is_program(name)) {
    fail_start(name, "is not executable", fmt::format("chmod +x {}", name));
  }
  return name;
}

std::string own_program() {
  std::error_code failed;
  const fs::path path = fs::read_symlink("/proc/self/exe", failed);
  return failed ? "unknown" : path.string();
}

std::string installed_file(const std::vector<std::string>& paths, const std::string& hint) {
  const fs::path folder = fs::path(own_program()).parent_path();
  std::error_code unreadable;
  for (const std::string& path : paths) {
    if (fs::exists(folder / path, unreadable)) return folder / path;
  }
  const std::string missing = folder / paths.front();
  throw Error(ErrorCode::kIo, fmt::format("{} does not exist", missing),
              {.subject = missing, .hint = hint});
}

void exec_program(const std::vector<std::string>& command, const std::string& hint) {
  std::fflush(stdout);
  ::execv(command[0].c_str(), argv_of(command).data());
  throw Error(ErrorCode::kIo, fmt::format("cannot run {}: {}", command[0], errno_message()),
              {.subject = command[0], .hint = hint});
}

std::vector<char*> argv_of(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace coupler::cli
