// The process's environment variables. Plain function, [any-thread] while no thread sets any.
#pragma once

#include <string>

namespace coupler {

// The variable's value; "" if it is not set.
std::string environment_text(const char* name);

}  // namespace coupler
