// ChildLoop: one poll() over children, their output, our signals, the terminal's input and one
// wake-up descriptor. Single-threaded; blocks in wait() only. What to do about events is the
// caller's.
#pragma once

#include <signal.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/process/child_process.h"
#include "cli/process/end_watch.h"
#include "cli/process/input_relay.h"
#include "cli/process/output_relay.h"
#include "cli/process/process_guard.h"
#include "rendezvous/socket_io.h"

namespace coupler::cli {

class ChildLoop {
 public:
  // From here on the signals that end or stop a program arrive through wait() instead, and a
  // process group for the children exists. folder: see ProcessGuard.
  explicit ChildLoop(const std::string& folder = "");
  ~ChildLoop();  // kills what is left; the signals act as before
  ChildLoop(const ChildLoop&) = delete;
  ChildLoop& operator=(const ChildLoop&) = delete;

  // What becomes of a child's output: its standard error always passes through us, its output only
  // where something is to be done with it.
  struct Output {
    std::string prefix;  // before every line
    std::string log;     // a file that gets both, too
    bool is_relayed() const { return !prefix.empty() || !log.empty(); }
  };

  // Starts command in the group. Children are numbered from 0. gets_input: it is the one that gets
  // our standard input; others get /dev/null. Throws Error(kIo) where its log cannot be written.
  size_t start(ChildCommand command, const Output& output, bool gets_input);
  // After all are started: throws Error(kUsage) naming the program where exec failed.
  void check_started(const std::string& program);

  struct Ended {
    size_t child;
    int status;  // as of waitpid
  };
  struct Events {
    std::vector<Ended> ended;  // in the order in which they ended
    std::vector<int> signals;
  };
  // Until something happened or the deadline passed (nothing: no deadline, for there are children
  // to wait for). wake_fd: also returns when it is readable; -1: none.
  Events wait(std::optional<Deadline> deadline, int wake_fd = -1);

  size_t running() const { return running_; }
  ChildProcess& child(size_t index) { return entries_[index].process; }
  std::deque<std::string> last_lines(size_t index) const;
  const ProcessGuard& group() const { return guard_; }
  // Stops the group and ourselves as the terminal's stop key does, until continued.
  void suspend();
  // Kills the group, and leaves its folder to whoever uses it last: see ProcessGuard.
  void release_group() { guard_.release(); }
  // Sends on all output that is still in the pipes.
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
  EndWatch ends_;
  InputRelay input_;
  std::deque<Entry> entries_;
  size_t running_ = 0;
};

}  // namespace coupler::cli
