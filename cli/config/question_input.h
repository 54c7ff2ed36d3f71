// QuestionInput: what comes while a question stands: bytes of standard input, its end, a signal, or
// another size of the terminal. Signals that would end the process are kept from doing so while it
// lives, so that whoever asks can put the terminal back first. One at a time, single-threaded.
#pragma once

#include <signal.h>

#include <string>

#include "rendezvous/unique_fd.h"

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
      kSignal,   // the process is to end
      kRedraw,   // the terminal has another size, or was somebody else's for a while
      kNothing,  // within the time given
    } kind = Kind::kNothing;
    char byte = 0;
    int signal = 0;
  };
  // Waits at most so long; negative: until there is something.
  Event next(int milliseconds = -1);

 private:
  sigset_t before_{};
  UniqueFd signals_;
  std::string ready_;  // bytes that were read and not yet given out
  size_t given_ = 0;
};

}  // namespace coupler::cli
