// The one way an error that ends the process reaches standard error: "coupler: error: <text>".
// [any-thread]; allocates nothing, so that it works while the process is falling over.
#pragma once

#include <string_view>

namespace coupler {

void report_error(std::string_view text) noexcept;

// Whether something stands on standard error's last line, as a progress bar does: an error then
// begins a line of its own.
void set_error_line_open(bool open) noexcept;

}  // namespace coupler
