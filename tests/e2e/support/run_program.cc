#include "run_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace coupler {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int wait_for(pid_t pid, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the program did not end within " << limit.count() << " s";
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void Workplace::write(const std::string& name, const std::string& text, int mode) const {
  const std::filesystem::path file = path() / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
  chmod(file.c_str(), static_cast<mode_t>(mode));
}

Outcome Workplace::coupler(const std::vector<std::string>& arguments,
                           std::map<std::string, std::string> variables) const {
  if (!arguments.empty() && arguments.front() == "launch") {
    // Waiting threads yield their core; see tests/schedule/CMakeLists.txt.
    variables.try_emplace("OMP_WAIT_POLICY", "passive");
    variables.try_emplace("OMPI_MCA_mpi_yield_when_idle", "1");
  }
  return run(COUPLER_PROGRAM, arguments, std::move(variables));
}

Outcome Workplace::run(const std::string& program, const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> variables) const {
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  variables.try_emplace("PATH", "/usr/bin:/bin");
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  const std::string out = path() / ".out";
  const std::string err = path() / ".err";
  constexpr int kWrite = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), kWrite, 0600);
  posix_spawn_file_actions_addopen(&files, 2, err.c_str(), kWrite, 0600);
  posix_spawn_file_actions_addchdir_np(&files, path().c_str());
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), &files, nullptr, pointers_to(argv).data(),
                                pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error("cannot start " + argv[0]);
  Outcome outcome;
  outcome.exit_code = wait_for(pid, limit);
  outcome.out = text_of(out);
  outcome.err = text_of(err);
  return outcome;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_TRUE(has(text, part)) << part << "\nis not in\n" << text;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace coupler
