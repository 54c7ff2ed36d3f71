// Prompter: asks the user for a choice or a string. A choice uses arrow keys in a terminal;
// elsewhere (a pipe, a terminal that is too small or dumb) it uses a numbered list and a line of
// input. Only one may exist at a time; single-threaded. The terminal is restored however a question
// ends, including by signals.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::cli {

// QuestionInput: events while a question is open: bytes of standard input, its end, a signal, or a
// resized terminal. While it lives, it blocks signals that would end the process, so that the
// caller can restore the terminal first. Only one may exist at a time; single-threaded.
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

struct Choice {
  std::string value;    // what is returned
  std::string meaning;  // shown after it
};

// Thrown if the user ends the questions, by a key (Ctrl-C, Ctrl-D) or a signal. The caller must not
// write anything.
struct Interrupted {
  int signal;
};

// Both questions throw Error(kUsage) if the answers come from a file or a pipe and end early or are
// invalid, because no user can correct them.
class Prompter {
 public:
  // first: the index of the answer that Enter alone gives.
  std::string choice(const std::string& question, const std::vector<Choice>& choices, size_t first);

  // check: returns what is wrong with an answer, as a sentence, and the question is asked again; ""
  // accepts it. Enter alone gives `first`.
  std::string text(const std::string& question, const std::string& first,
                   const std::function<std::string(const std::string&)>& check = {});

 private:
  std::string choose_in_list(const std::string& question, const std::vector<Choice>& choices,
                             size_t first);
  std::string read_line(const std::string& question);
  void refuse(const std::string& question, const std::string& problem) const;

  QuestionInput input_;
};

}  // namespace coupler::cli
