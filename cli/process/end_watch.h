// EndWatch: processes, and which of them have ended, in the order of their ends: of two that end
// within a millisecond epoll knows who was first, poll does not. Single-threaded.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

class EndWatch {
 public:
  EndWatch();  // throws Error(kIo)

  // process: a pidfd, open until its end is taken. Throws Error(kIo).
  void add(size_t number, int process);
  // Readable when some have ended.
  int fd() const { return ends_.get(); }
  // The numbers of those that have ended since the last call.
  std::vector<size_t> take();

 private:
  UniqueFd ends_;
  std::unordered_map<size_t, int> processes_;
};

}  // namespace coupler::cli
