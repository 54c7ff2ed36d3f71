#include "coupler_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/process.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coupler::testing_launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

void pause() { std::this_thread::sleep_for(1ms); }

}  // namespace

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // does not throw if the process has just ended
  return text.str();
}

CouplerRun::CouplerRun(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment,
                       const std::string& input) {
  // On a disk, creating a file may take many seconds while other tests write gigabytes.
  char name[] = "/dev/shm/coupler-launch-test-XXXXXX";
  folder_ = ::mkdtemp(name);
  std::ofstream(folder_ + "/in") << input;
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  variables["COUPLER_TEST_MARK"] = folder_;
  variables["TMPDIR"] = folder_;
  for (const auto& [key, value] : environment) {
    variables[key] = value;
  }
  std::vector<std::string> texts;
  for (const auto& [key, value] : variables) {
    if (!value.empty()) {
      texts.push_back(key + "=" + value);
    }
  }
  std::vector<std::string> words = {COUPLER_BINARY_DIR "/bin/coupler"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (auto& word : words) {
    argv.push_back(word.data());
  }
  for (auto& text : texts) {
    envp.push_back(text.data());
  }
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    if (::chdir(folder_.c_str()) != 0) {
      ::_exit(126);
    }
    ::dup2(::open("in", O_RDONLY | O_CLOEXEC), 0);
    ::dup2(::open("out", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 1);
    ::dup2(::open("err", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 2);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(126);
  }
}

CouplerRun::~CouplerRun() {
  for (const pid_t pid : alive()) {
    ::kill(pid, SIGKILL);
  }
  wait(10s);
  fs::remove_all(folder_);
}

RunResult CouplerRun::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!ended_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      result_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (Clock::now() >= deadline) {
      break;
    } else {
      pause();
    }
  }
  result_.output = read_file(folder_ + "/out");
  result_.error = read_file(folder_ + "/err");
  return result_;
}

void CouplerRun::signal(int number) const {
  if (!ended_) {
    ::kill(pid_, number);
  }
}

std::string CouplerRun::wait_for_file(const std::string& name) const {
  const auto deadline = Clock::now() + 20s;
  while (Clock::now() < deadline) {
    auto text = read_file(folder_ + "/" + name);
    if (!text.empty() && text.back() == '\n') {
      return text;
    }
    pause();
  }
  ADD_FAILURE() << "no file " << name << " in " << folder_ << " after 20 s\n" << describe();
  return {};
}

pid_t CouplerRun::wait_for_pid(const std::string& name) const {
  return static_cast<pid_t>(std::atol(wait_for_file(name).c_str()));
}

std::string CouplerRun::describe() const {
  std::string text = read_file(folder_ + "/out") + read_file(folder_ + "/err");
  for (const pid_t pid : alive()) {
    const std::string folder = "/proc/" + std::to_string(pid);
    std::string command = read_file(folder + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    // schedstat: nanoseconds on a CPU, and those of waiting for one.
    text += fmt::format("{} (of {}, {}, in {}, CPU {}): {}\n", pid, parent_of(pid), state_of(pid),
                        read_file(folder + "/wchan"), read_file(folder + "/schedstat"), command);
  }
  return text;
}

std::vector<pid_t> CouplerRun::alive() const {
  const std::string mark = "COUPLER_TEST_MARK=" + folder_;
  std::vector<pid_t> pids;
  std::error_code gone;  // processes may end meanwhile
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const auto pid = std::atol(entry.path().filename().c_str());
    if (pid > 0 && read_file(entry.path().string() + "/environ").find(mark) != std::string::npos) {
      pids.push_back(static_cast<pid_t>(pid));
    }
  }
  return pids;
}

std::optional<std::chrono::milliseconds> CouplerRun::time_until_gone(
    std::chrono::milliseconds most) const {
  const auto begin = Clock::now();
  auto last = begin;  // when one was last seen
  // Looks twice, since a process during fork or exec shows no environment.
  for (int looks = 0; looks < 2; std::this_thread::sleep_for(looks == 0 ? 1ms : 5ms)) {
    looks = alive().empty() ? looks + 1 : 0;
    if (looks == 0) {
      last = Clock::now();
      if (last - begin >= most) {
        return std::nullopt;
      }
    }
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(last - begin);
}

RunResult run_coupler(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment,
                      const std::string& input) {
  return CouplerRun(arguments, environment, input).wait();
}

std::vector<std::string> launch(int processes, const std::vector<std::string>& rest,
                                const std::string& backend) {
  std::vector<std::string> words = {"launch", "-o", "backend.use=" + backend, "-n",
                                    std::to_string(processes)};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

std::vector<std::string> launch_script(int processes, const std::string& script,
                                       const std::string& backend) {
  return launch(processes, {"/bin/sh", "-c", script}, backend);
}

pid_t parent_of(pid_t pid) { return static_cast<pid_t>(status_of(pid).parent); }

char state_of(pid_t pid) {
  const char state = status_of(pid).state;
  return state == 0 ? 'Z' : state;
}

int kill_count(int usual) {
  const char* text = std::getenv("COUPLER_TEST_KILLS");
  return text == nullptr ? usual : std::atoi(text);
}

}  // namespace coupler::testing_launch
