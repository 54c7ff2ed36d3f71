#include "base/subprocess.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file_descriptor.h"

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;
using ChildWork = std::function<std::string()>;

constexpr size_t kChildrenAtOnce = 16;
// Marks the end of a complete answer.
constexpr char kWhole = '\n';
// How long a child that has answered may take to exit. A killed child that is stuck in the kernel
// (a file system that does not answer) is abandoned after the same time.
constexpr std::chrono::seconds kReapDeadline(5);

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

// The read end of one of a child's two pipes, and what has arrived so far.
struct Stream {
  UniqueFd fd;
  std::string text;

  void take() {
    std::array<char, 4096> buffer;
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      fd.reset();
    }
  }
};

struct Child {
  pid_t pid = -1;  // -1: it could not be started
  Stream answer, errors;
};

bool open_pipe(UniqueFd& from, UniqueFd& to) {
  std::array<int, 2> ends = {-1, -1};
  const bool opened = pipe2(ends.data(), O_CLOEXEC) == 0;
  from.reset(ends[0]);
  to.reset(ends[1]);
  return opened;
}

Child start(const ChildWork& work, std::chrono::seconds deadline, Leave leave) {
  Child child;
  UniqueFd answer, errors;  // the child's ends
  if (!open_pipe(child.answer.fd, answer) || !open_pipe(child.errors.fd, errors)) return child;
  std::fflush(nullptr);  // or the child would write what is buffered a second time
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) {
    // The parent kills this at the deadline; if the parent dies first, the alarm ends the child.
    alarm(2 * static_cast<unsigned>(deadline.count()));
    if (getppid() != parent) _exit(1);
    dup2(errors.get(), STDERR_FILENO);
    // If that fails, the parent has given up and reports it itself.
    write_fully(answer.get(), work() + kWhole);
    answer.reset();
    if (leave == Leave::kByExit) std::exit(0);
    _exit(0);
  }
  return child;
}

// Reads until every child has closed its answer or the deadline has passed.
void read_answers(std::vector<Child>& children, Clock::time_point deadline) {
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<Stream*> streams;
    bool answer_missing = false;
    for (Child& child : children) {
      answer_missing = answer_missing || child.answer.fd;
      for (Stream* stream : {&child.answer, &child.errors}) {
        if (!stream->fd) continue;
        waiting.push_back({stream->fd.get(), POLLIN, 0});
        streams.push_back(stream);
      }
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (!answer_missing || left <= 0) return;
    if (poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) continue;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) streams[i]->take();
    }
  }
}

// The end of the child's standard error, without our own prefix.
std::string last_words(std::string text) {
  constexpr std::string_view kPrefix = "coupler: error: ";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t ours = text.rfind(kPrefix);
  if (ours != std::string::npos) return text.substr(ours + kPrefix.size());
  return text.substr(text.size() - std::min<size_t>(text.size(), 400));
}

// Stores the exit status; false if the child does not even end when it is killed.
bool reap(pid_t pid, int& status) {
  const Clock::time_point end = Clock::now() + kReapDeadline;
  for (;;) {
    const pid_t reaped = waitpid(pid, &status, WNOHANG);
    if (reaped == pid) return true;
    if (reaped < 0 && errno != EINTR) return false;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ChildResult finish(Child& child) {
  const bool in_time = !child.answer.fd;
  if (!in_time) kill(child.pid, SIGKILL);
  int status = 0;
  bool reaped = reap(child.pid, status);
  if (!reaped && in_time) {
    kill(child.pid, SIGKILL);
    reaped = reap(child.pid, status);
  }
  ChildResult result;
  result.text = std::move(child.answer.text);
  if (in_time && !result.text.empty() && result.text.back() == kWhole) {
    result.text.pop_back();
    write_fully(STDERR_FILENO, child.errors.text);  // its log lines
    return result;
  }
  result.text.clear();
  result.words = last_words(child.errors.text);
  if (!in_time || !reaped) {
    result.end = ChildResult::End::kLate;
  } else if (WIFSIGNALED(status)) {
    result.end = ChildResult::End::kSignal;
    result.number = WTERMSIG(status);
  } else {
    result.end = ChildResult::End::kExit;
    result.number = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace

std::vector<ChildResult> run_in_children(const std::vector<ChildWork>& works,
                                         std::chrono::seconds deadline, Leave leave) {
  std::vector<ChildResult> answers;
  const bool in_place = has_other_threads();
  for (size_t first = 0; first < works.size(); first += kChildrenAtOnce) {
    const size_t last = std::min(works.size(), first + kChildrenAtOnce);
    std::vector<Child> children;
    for (size_t i = first; i < last; ++i) {
      children.push_back(in_place ? Child() : start(works[i], deadline, leave));
      if (children.back().pid < 0) children.back().answer.fd.reset();
    }
    read_answers(children, Clock::now() + deadline);
    for (size_t i = first; i < last; ++i) {
      Child& child = children[i - first];
      answers.push_back(child.pid < 0 ? ChildResult{.text = works[i]()} : finish(child));
    }
  }
  return answers;
}

std::string describe_exit(const ChildResult& answer, std::chrono::seconds deadline,
                          const std::string& during) {
  const std::string then = during.empty() ? "" : " " + during;
  std::string text;
  if (answer.end == ChildResult::End::kLate) {
    text = fmt::format("was stopped after {} s{}", deadline.count(), then);
  } else if (answer.end == ChildResult::End::kSignal) {
    text = fmt::format("crashed{}: signal {} ({})", then, answer.number, strsignal(answer.number));
  } else {
    text = fmt::format("ended the process with exit code {}{}", answer.number, then);
  }
  return answer.words.empty() ? text : text + ": " + answer.words;
}

}  // namespace coupler
