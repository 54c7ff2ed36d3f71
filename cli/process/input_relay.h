// InputRelay: passes what is typed at the launcher's terminal to rank 0. Single-threaded.
//
// The ranks have their own process group, to which the terminal would refuse its input, so the
// launcher reads it for them. Input that is not a terminal goes to rank 0 directly, without a
// relay.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace coupler::cli {

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

}  // namespace coupler::cli
