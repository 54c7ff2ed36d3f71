// Asker: asks the user for a choice or a string. A choice uses arrow keys in a terminal; elsewhere
// (a pipe, a terminal that is too small or dumb) it uses a numbered list and a line of input. Only
// one may exist at a time; single-threaded. The terminal is restored however a question ends,
// including by signals.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/config/question_input.h"

namespace coupler::cli {

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
class Asker {
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
