// A list of choices in a terminal, selected with arrow keys. Single-threaded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config/ask.h"

namespace coupler::cli {

// Writes to standard output and flushes, so that a question is visible before its answer is read.
void write_out(const std::string& text);

// Whether there is a terminal that can redraw this number of choices.
bool can_draw(size_t choices);

// The index of the choice taken with Enter; empty if the terminal became too small. Throws
// Interrupted.
std::optional<size_t> choose_by_keys(QuestionInput& input, const std::string& question,
                                     const std::vector<Choice>& choices, size_t first);

}  // namespace coupler::cli
