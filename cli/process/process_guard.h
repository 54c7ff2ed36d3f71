// ProcessGuard: a process group whose members do not outlive their launcher. Single-threaded; made
// by the thread that later starts the members, before any other thread runs.
//
// A tiny process leads the group and waits for the launcher to end, in whatever way: then it kills
// the whole group, grandchildren included. (The kernel's parent-death signal, which every member
// has too, reaches direct children only.) Members that leave the group are out of its reach.
#pragma once

#include <sys/types.h>

#include <string>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

class ProcessGuard {
 public:
  // folder: one that members write into, and maybe others, too (process/folder_use.h); "": none.
  // The guard uses it, and where it outlives the launcher, removes it once the group is gone and
  // nobody else uses it any more. Throws Error(kIo) where no process can be made.
  explicit ProcessGuard(const std::string& folder = "");
  ~ProcessGuard();  // kills what is left of the group, the guard first: the folder is the caller's
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  pid_t group() const { return leader_; }
  // To every member; the guard itself takes no signal but SIGKILL and SIGSTOP.
  void signal_members(int signal) const;

  // Does at once what the end of this process would do: the group is killed, and the folder left to
  // whoever uses it last. There is no group from then on.
  void release();

 private:
  void reap();

  UniqueFd lifeline_;  // closed by the kernel when this process ends
  pid_t leader_ = -1;  // not reaped before the end, so that the group's number stays ours
};

}  // namespace coupler::cli
