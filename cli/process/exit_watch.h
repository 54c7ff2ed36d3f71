// ExitWatch: reports which processes have ended, in the order in which they ended. epoll keeps that
// order even within a millisecond; poll does not. Single-threaded.
#pragma once

#include <cstddef>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::cli {

class ExitWatch {
 public:
  ExitWatch();  // throws Error(kIo)

  // process: a pidfd that stays open until its end is taken. Throws Error(kIo).
  void add(size_t number, int process);
  // Readable when a process has ended.
  int fd() const { return ends_.get(); }
  // The numbers of the processes that have ended since the last call.
  std::vector<size_t> take();

 private:
  UniqueFd ends_;
};

}  // namespace coupler::cli
