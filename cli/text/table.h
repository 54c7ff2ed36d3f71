// Human-readable output: a table with aligned columns, a single line. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// The first row is the heading; the last column is not padded.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Replaces runs of blanks and control characters, line breaks included, with single blanks: the
// result is one line without terminal escapes, whatever plugins and files contain.
std::string one_line(const std::string& text);

}  // namespace coupler::cli
