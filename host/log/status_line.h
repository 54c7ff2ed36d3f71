// The status line: the last line of a terminal, which a progress bar draws again and again. What is
// written meanwhile through this header goes above it and does not tear it. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Draws the line, over the one that is there; `text` has no end of line and fits into the terminal.
void show_status_line(std::string text);
// Wipes it.
void hide_status_line();
// Writes `text` in its place, and ends the line.
void leave_status_line(std::string_view text);

// Writes lines, with their ends, to standard error in one piece. What cannot be written is dropped:
// there is nobody to tell.
void write_error_lines(std::string_view lines);
// The same to standard output, through std::cout.
void write_output_lines(std::string_view lines);

}  // namespace coupler
