#include "plugin/trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline(10);

// Everything a report holds, fields separated by zero bytes, in one order for both directions.
std::string pack(const PluginReport& report) {
  const std::array<std::string, 9> fields = {
      report.name,
      report.path,
      report.version,
      report.description,
      report.abi,
      report.reason,
      std::to_string(report.score),
      report.usable ? "1" : "0",
      fmt::format("{}{}", report.needs_mpi_launch ? 1 : 0, report.needs_base ? 1 : 0)};
  std::string text;
  for (const std::string& field : fields) text.append(field).push_back('\0');
  return text;
}

bool unpack(const std::string& text, PluginReport& report) {
  std::vector<std::string> fields;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\0', start);
    if (end == std::string::npos) return false;
    fields.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  if (fields.size() != 9 || fields[8].size() != 2) return false;
  report.name = fields[0];
  report.path = fields[1];
  report.version = fields[2];
  report.description = fields[3];
  report.abi = fields[4];
  report.reason = fields[5];
  report.score = std::stoi(fields[6]);
  report.usable = fields[7] == "1";
  report.needs_mpi_launch = fields[8][0] == '1';
  report.needs_base = fields[8][1] == '1';
  return true;
}

bool has_other_threads() {
  std::error_code failed;
  const std::filesystem::directory_iterator tasks("/proc/self/task", failed);
  if (failed) return true;
  auto count = std::distance(begin(tasks), end(tasks));
#ifdef __SANITIZE_THREAD__
  --count;  // the sanitizer's own thread, which it takes care of across a fork
#endif
  return count > 1;
}

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the parent has given up and says so itself
    done += static_cast<size_t>(written);
  }
}

struct Pipe {
  int read_end = -1, write_end = -1;
  bool open() {
    std::array<int, 2> ends = {-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    read_end = ends[0];
    write_end = ends[1];
    return true;
  }
  void close_end(int& end) const {
    if (end >= 0) close(end);
    end = -1;
  }
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
};

// Reads both pipes until the child has closed the first, or the deadline.
bool read_answer(int answer_fd, int errors_fd, std::string& answer, std::string& errors) {
  const Clock::time_point deadline = Clock::now() + kDeadline;
  std::array<pollfd, 2> fds = {{{answer_fd, POLLIN, 0}, {errors_fd, POLLIN, 0}}};
  std::array<char, 4096> buffer;
  while (fds[0].fd >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(fds.data(), fds.size(), static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t got = read(fds[i].fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        fds[i].fd = -1;
      } else {
        (i == 0 ? answer : errors).append(buffer.data(), static_cast<size_t>(got));
      }
    }
  }
  return true;
}

// What the child said last on standard error, without our own prefix.
std::string last_words(std::string text) {
  constexpr std::string_view kPrefix = "coupler: error: ";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t ours = text.rfind(kPrefix);
  if (ours != std::string::npos) return text.substr(ours + kPrefix.size());
  return text.substr(text.size() - std::min<size_t>(text.size(), 400));
}

std::string describe_end(int status, bool in_time, const std::string& errors) {
  std::string words = last_words(errors);
  if (!in_time) {
    return fmt::format("did not finish loading and probing within {} s and was stopped",
                       kDeadline.count());
  }
  if (WIFSIGNALED(status)) {
    return fmt::format("crashed while being loaded or probed: signal {} ({}){}{}", WTERMSIG(status),
                       strsignal(WTERMSIG(status)), words.empty() ? "" : ": ", words);
  }
  if (!words.empty()) return words;
  return fmt::format("ended the process with exit code {} while being loaded or probed",
                     WEXITSTATUS(status));
}

}  // namespace

PluginReport run_in_child(const std::string& name, const std::string& path,
                          const std::function<PluginReport()>& examine) {
  Pipe answer, errors;
  if (has_other_threads() || !answer.open() || !errors.open()) return examine();
  std::fflush(nullptr);  // or the child would write what is buffered a second time
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return examine();
  if (child == 0) {
    // The parent kills this at the deadline; should it die before, this must not stay behind.
    alarm(2 * static_cast<unsigned>(kDeadline.count()));
    if (getppid() != parent) _exit(1);
    dup2(errors.write_end, STDERR_FILENO);
    write_all(answer.write_end, pack(examine()));
    _exit(0);
  }
  answer.close_end(answer.write_end);
  errors.close_end(errors.write_end);
  std::string answer_text, errors_text;
  const bool in_time = read_answer(answer.read_end, errors.read_end, answer_text, errors_text);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  PluginReport report;
  if (unpack(answer_text, report)) {
    write_all(STDERR_FILENO, errors_text);  // its log lines
    return report;
  }
  report = {};
  report.name = name;
  report.path = path;
  report.reason = describe_end(status, in_time, errors_text);
  return report;
}

}  // namespace coupler
