// ProcessGuard: a process group whose members do not outlive their launcher. Single-threaded; must
// be constructed by the thread that later starts the members, before any other thread runs.
//
// A tiny process leads the group and waits for the launcher to end, in whatever way. Then it kills
// the whole group, including grandchildren. (The kernel's parent-death signal, which every member
// also has, reaches only direct children.) Members that leave the group are out of its reach.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/file_descriptor.h"

namespace coupler::cli {

class ProcessGuard {
 public:
  // folder: one that members, and maybe others, write to (process/folder_use.h); "": none. The
  // guard uses it, from the launcher's end on if it does not exist yet. If the guard outlives the
  // launcher, it removes the folder once the group is gone and no one else uses it. Throws
  // Error(kIo) if no process can be created.
  explicit ProcessGuard(const std::string& folder = "");
  ~ProcessGuard();  // kills what is left of the group, guard included; the caller owns the folder
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  pid_t group() const { return leader_; }
  // Signals every member; the guard itself reacts only to SIGKILL and SIGSTOP.
  void signal_members(int signal) const;

  // Does at once what the end of this process would do: kills the group and leaves the folder to
  // its last user. The group no longer exists afterwards.
  void release();

 private:
  void reap();

  UniqueFd lifeline_;  // closed by the kernel when this process ends
  pid_t leader_ = -1;  // reaped last, so that the group's id stays ours
};

}  // namespace coupler::cli
