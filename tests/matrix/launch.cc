#include "launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace coupler::matrix {
namespace {

[[noreturn]] void exec_program(const std::vector<std::string>& command, const std::string& folder,
                               int output) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (chdir(folder.c_str()) == 0) execv(arguments[0], arguments.data());
  std::fprintf(stderr, "cannot run %s: %s\n", arguments[0], std::strerror(errno));
  _exit(127);
}

}  // namespace

LaunchResult launch(const std::vector<std::string>& command, const std::string& folder,
                    std::chrono::seconds limit) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) exec_program(command, folder, pipe_ends[1]);
  close(pipe_ends[1]);
  LaunchResult result;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::array<char, 4096> buffer{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      result.overdue = true;
      break;
    }
    pollfd readable = {.fd = pipe_ends[0], .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t size = read(pipe_ends[0], buffer.data(), buffer.size());
    if (size <= 0) break;
    result.output.append(buffer.data(), static_cast<size_t>(size));
  }
  close(pipe_ends[0]);
  if (result.overdue) kill(-child, SIGTERM);
  int status = 0;
  for (int attempt = 0; attempt < 100 && waitpid(child, &status, WNOHANG) == 0; ++attempt) {
    usleep(50'000);
    if (attempt == 60) kill(-child, SIGKILL);
  }
  kill(-child, SIGKILL);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace coupler::matrix
