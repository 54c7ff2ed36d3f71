// The process's environment variables. Plain function, [any-thread] while nobody sets any.
#pragma once

#include <string>

namespace coupler {

// The variable's text; "" where it is not set.
std::string environment_text(const char* name);

}  // namespace coupler
