// The one way an error that ends the process reaches standard error: "coupler: error: <text>".
// [any-thread]; allocates nothing, so that it works while the process is falling over.
#pragma once

#include <string_view>

namespace coupler {

void report_error(std::string_view text) noexcept;

}  // namespace coupler
