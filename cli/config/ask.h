// Asker: asks the user: a choice of a few, or a text. In a terminal with arrow keys, elsewhere (a
// pipe, a terminal that is too small or dumb) with a numbered list and a line. One at a time,
// single-threaded; a terminal is as it was whichever way a question ends, signals included.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/config/question_input.h"

namespace coupler::cli {

struct Choice {
  std::string value;    // what is returned
  std::string meaning;  // shown behind it
};

// Thrown where the user ends the questions, by keys (Ctrl-C, Ctrl-D) or a signal: nothing is to be
// written.
struct Interrupted {
  int signal;
};

// Both throw Error(kUsage) where the answers come from a file or a pipe that ends early, or are
// wrong: nobody is there to give others.
class Asker {
 public:
  // first: the index of the answer that Enter alone gives.
  std::string choice(const std::string& question, const std::vector<Choice>& choices, size_t first);

  // check: what is wrong with an answer, "" where nothing; the question is then put again. Enter
  // alone gives the first answer.
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
