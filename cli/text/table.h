// Texts for people to read: a table with aligned columns, a line. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// The first row is the heading; the last column is not padded.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Blanks and control characters, line ends among them, become single blanks: one line, and nothing
// that a terminal would obey, whatever plugins and files put into the text.
std::string one_line(const std::string& text);

}  // namespace coupler::cli
