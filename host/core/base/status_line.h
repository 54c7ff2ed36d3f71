// The status line: the last line of a terminal, which a progress bar keeps redrawing. Output
// written through this header goes above it and leaves it intact. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// Draws the line over the current one; `text` has no newline and fits the terminal's width.
void show_status_line(std::string text);
// Erases it.
void hide_status_line();
// Replaces it with `text` and ends the line.
void leave_status_line(std::string_view text);

// Writes lines, with their newlines, to standard error in one piece. What cannot be written is
// dropped.
void write_error_lines(std::string_view lines);
// The same to standard output, through std::cout.
void write_output_lines(std::string_view lines);

}  // namespace coupler
