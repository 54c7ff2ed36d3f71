// Starts and awaits one child process. Single-threaded: a child dies with the thread that started
// it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::cli {

// Pipe: two ends, both close-on-exec. Plain data; no threading rule.
struct Pipe {
  UniqueFd reading, writing;
};

// Throws Error(kIo).
Pipe make_pipe();

struct ChildCommand {
  std::string path;                      // of the program, as find_program() gives it
  std::vector<std::string> arguments;    // including argv[0]
  std::vector<std::string> environment;  // NAME=value
  int standard_input = 0;                // descriptors the child gets as 0, 1 and 2
  int standard_output = 1;
  int standard_error = 2;
  pid_t group = 0;         // process group to join
  sigset_t signal_mask{};  // of the child
  std::vector<int> cpus;   // the CPUs it may run on; empty: its parent's
};

class ChildProcess {
 public:
  // Forks; the child executes the program after let_go() and is killed when this process ends.
  // Throws Error(kIo) if no process can be created.
  explicit ChildProcess(const ChildCommand& command);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills and reaps it unless it was reaped

  // Lets the program begin. It cannot end before this call, so the caller can watch it first.
  void let_go();

  // Waits for the child's exec. 0, or errno of the failed exec.
  int exec_failure();

  pid_t pid() const { return pid_; }
  int end_fd() const { return pidfd_.get(); }  // readable once the child has ended
  void signal(int number) const;               // never reaches another process
  int reap();                                  // waits for the child's end; the wait status

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  UniqueFd pidfd_;
  UniqueFd exec_result_;
  // The child waits for a byte from the sync pipe. We keep its reading end open, so that a child
  // killed meanwhile does not break the pipe.
  UniqueFd waiting_, sync_pipe_;
};

}  // namespace coupler::cli
