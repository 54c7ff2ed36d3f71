// Starting and awaiting one child process. Single-threaded: a child dies with the thread that
// started it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

struct ChildCommand {
  std::string path;                      // of the program, as find_program() gave it
  std::vector<std::string> arguments;    // with argv[0]
  std::vector<std::string> environment;  // NAME=value
  int standard_input = 0;                // descriptors the child gets as 0, 1 and 2
  int standard_output = 1;
  int standard_error = 2;
  pid_t group = 0;         // process group to join
  sigset_t signal_mask{};  // of the child
  std::vector<int> cpus;   // it may run on; empty: those of its parent
};

class ChildProcess {
 public:
  // Forks; the program is executed after let_go(). The child is killed when this process ends.
  // Throws Error(kIo) where no process can be made.
  explicit ChildProcess(const ChildCommand& command);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills and reaps it where it still runs

  // Until then the program has not begun, and so cannot end before somebody watches it.
  void let_go();

  // 0, or errno of the failed exec. Waits until the child has come that far.
  int exec_failure();

  pid_t pid() const { return pid_; }
  int end_fd() const { return pidfd_.get(); }  // readable once the child has ended
  void signal(int number) const;               // never reaches another process
  int reap();                                  // the wait status; waits for the child's end

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  UniqueFd pidfd_;
  UniqueFd exec_result_;
  // The child waits for a byte from the gate. Its end is open here, too: a child that has been
  // killed meanwhile is no broken pipe.
  UniqueFd waiting_, gate_;
};

// Where a program is: `name` itself where it has a slash, else the first executable of that name in
// the folders of `path` (PATH's text). Throws Error(kUsage) naming the program and what is wrong.
std::string find_program(const std::string& name, const std::string& path);

// As find_program for a name without slash, but "" where there is none.
std::string search_path(const std::string& name, const std::string& path);

}  // namespace coupler::cli
