// QuestionInput: events while a question is open: bytes of standard input, its end, a signal, or a
// resized terminal. While it lives, it blocks signals that would end the process, so that the
// caller can restore the terminal first. Only one may exist at a time; single-threaded.
#pragma once

#include <signal.h>

#include <string>

#include "base/unique_fd.h"

namespace coupler::cli {

class QuestionInput {
 public:
  QuestionInput();
  ~QuestionInput();
  QuestionInput(const QuestionInput&) = delete;
  QuestionInput& operator=(const QuestionInput&) = delete;

  struct Event {
    enum class Kind {
      kByte,
      kEnd,      // of the input
      kSignal,   // the process is asked to end
      kRedraw,   // the terminal was resized, or another program used it for a while
      kNothing,  // no event within the given time
    } kind = Kind::kNothing;
    char byte = 0;
    int signal = 0;
  };
  // Waits for an event, at most `milliseconds`; negative: without a limit.
  Event next(int milliseconds = -1);

 private:
  sigset_t before_{};
  UniqueFd signals_;
  std::string ready_;  // bytes read from standard input; next() has returned given_ of them
  size_t given_ = 0;
};

}  // namespace coupler::cli
