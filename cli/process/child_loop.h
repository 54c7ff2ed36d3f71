// ChildLoop: one poll() over children, their output, our signals, the terminal's input and one
// wake-up descriptor. Single-threaded; blocks only in wait(). The caller decides how to react to
// events.
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "base/socket.h"
#include "cli/process/child_process.h"
#include "cli/process/exit_watch.h"
#include "cli/process/output_relay.h"
#include "cli/process/process_guard.h"

namespace coupler::cli {

// InputRelay: passes what is typed at the launcher's terminal to rank 0. Single-threaded.
//
// The ranks have their own process group, to which the terminal would refuse its input, so the
// launcher reads it for them. Input that is not a terminal goes to rank 0 directly, without a
// relay.
class InputRelay {
 public:
  InputRelay();
  // The descriptor that rank 0 gets as its input: the relay's if ours is a terminal, else ours.
  // Call release_child_end() once rank 0 runs.
  int child_end() const { return child_end_ ? child_end_.get() : 0; }
  void release_child_end() { child_end_.reset(); }

  // Adds what to poll for; false if nothing is relayed now. Call pump() after poll().
  bool add_poll(std::vector<pollfd>& entries) const;
  void pump(const pollfd& entry);

 private:
  UniqueFd child_end_;
  UniqueFd writing_;
  std::string buffer_;
  std::chrono::steady_clock::time_point pause_until_{};
};

class ChildLoop {
 public:
  // While it lives, signals that end or stop a program arrive through wait() instead. Creates the
  // children's process group. folder: see ProcessGuard.
  explicit ChildLoop(const std::string& folder = "");
  ~ChildLoop();  // kills what is left and restores the signals
  ChildLoop(const ChildLoop&) = delete;
  ChildLoop& operator=(const ChildLoop&) = delete;

  // Where a child's output goes. Its standard error always passes through us, its standard output
  // only if it needs a prefix or a log.
  struct Output {
    std::string prefix;  // before every line
    std::string log;     // a file that also gets both; "": none
    bool is_relayed() const { return !prefix.empty() || !log.empty(); }
  };

  // Starts command in the group and returns its number, from 0. gets_input: this child gets our
  // standard input; others get /dev/null. Throws Error(kIo) if its log cannot be written.
  size_t start(ChildCommand command, const Output& output, bool gets_input);
  // Call after all are started. Throws Error(kUsage) naming the program if an exec failed.
  void check_started(const std::string& program);

  struct Ended {
    size_t child;
    int status;  // as of waitpid
  };
  struct Events {
    std::vector<Ended> ended;  // in the order in which they ended
    std::vector<int> signals;
  };
  // Waits for an event or until the deadline; an empty deadline waits for the children without a
  // limit, but may return without events. Also returns when wake_fd is readable; -1: none.
  Events wait(std::optional<Deadline> deadline, int wake_fd = -1);

  size_t running() const { return running_; }
  ChildProcess& child(size_t index) { return entries_[index].process; }
  std::deque<std::string> last_lines(size_t index) const;
  const ProcessGuard& group() const { return guard_; }
  // Stops the group and ourselves, as the terminal's stop key does, until continued.
  void suspend();
  // Kills the group and leaves its folder to the last user: see ProcessGuard.
  void release_group() { guard_.release(); }
  // Forwards all output still in the pipes.
  void finish_output();

 private:
  struct Entry {
    ChildProcess process;
    std::optional<OutputRelay> output, error;
  };

  void take_ended(Events& events);

  ProcessGuard guard_;
  sigset_t previous_mask_{};
  UniqueFd signals_;
  UniqueFd null_;
  ExitWatch ends_;
  InputRelay input_;
  std::deque<Entry> entries_;
  size_t running_ = 0;
};

}  // namespace coupler::cli
