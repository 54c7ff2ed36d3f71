// InputRelay: gives rank 0 what is typed at the launcher's terminal. Single-threaded.
//
// The ranks are a process group of their own, to which the terminal would refuse its input; so the
// launcher reads it for them. Input that is no terminal goes to rank 0 directly, without a relay.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

class InputRelay {
 public:
  // The descriptor rank 0 gets as its input: the relay's where ours is a terminal, else ours.
  // Close it (release_child_end) once rank 0 runs.
  InputRelay();
  int child_end() const { return child_end_ ? child_end_.get() : 0; }
  void release_child_end() { child_end_.reset(); }

  // Adds what to poll for; false where nothing is relayed now. pump() after poll().
  bool add_poll(std::vector<pollfd>& entries) const;
  void pump(const pollfd& entry);

 private:
  UniqueFd child_end_;
  UniqueFd writing_;
  std::string buffer_;
  std::chrono::steady_clock::time_point pause_until_{};
};

}  // namespace coupler::cli
