// Writes an error that ends the process to standard error: "coupler: error: <text>".
// [any-thread]; allocates nothing, so that it works while the process is crashing.
#pragma once

#include <string_view>

namespace coupler {

void report_error(std::string_view text) noexcept;

// Whether standard error's last line is unfinished (a progress bar): an error then starts a new
// line.
void set_error_line_open(bool open) noexcept;

}  // namespace coupler
