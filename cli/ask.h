// Asking the user: a choice of a few, or a text. In a terminal with arrow keys, elsewhere (a pipe,
// a terminal that is too small or dumb) with a numbered list and a line. Single-threaded; a
// terminal is as it was whichever way a question ends, Ctrl-C included.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace coupler::cli {

struct Choice {
  std::string value;    // what is returned
  std::string meaning;  // shown behind it
};

// Thrown where the user ends the questions by Ctrl-C or the end of the input: nothing is to be
// written.
struct Interrupted {};

// first: the index of the answer that Enter alone gives.
std::string ask_choice(const std::string& question, const std::vector<Choice>& choices,
                       size_t first);

// check: what is wrong with an answer, "" where nothing; the question is then put again. Enter
// alone gives the first answer.
std::string ask_text(const std::string& question, const std::string& first,
                     const std::function<std::string(const std::string&)>& check = {});

}  // namespace coupler::cli
