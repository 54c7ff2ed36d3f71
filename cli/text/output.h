// What commands print: tables, paragraphs, single lines, JSON. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// The first row is the heading; the last column is not padded.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Breaks the text into lines of at most 100 columns and ends the last one, too. used: the columns
// before the first line; each other line begins with `start`.
std::string wrapped(std::string_view text, size_t used = 0, const std::string& start = {});

// Replaces runs of blanks and control characters, line breaks included, with single blanks: the
// result is one line without terminal escapes, whatever plugins and files contain.
std::string one_line(const std::string& text);

// Shows control characters as \\xNN, so that the string is safe to print.
std::string printable(std::string_view text);

// The output format of every --json. Ends with a line break. Invalid UTF-8 is replaced instead of
// throwing: strings also come from plugins, files and users.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace coupler::cli
