// A list of choices in a terminal, one of which is taken by arrow keys. Single-threaded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config/ask.h"

namespace coupler::cli {

// To standard output, at once: a question is seen before its answer is waited for.
void write_out(const std::string& text);

// Whether there is a terminal in which so many choices can be drawn again and again.
bool can_draw(size_t choices);

// The index of what Enter takes; nothing where the terminal became too small meanwhile. Throws
// Interrupted.
std::optional<size_t> choose_by_keys(QuestionInput& input, const std::string& question,
                                     const std::vector<Choice>& choices, size_t first);

}  // namespace coupler::cli
