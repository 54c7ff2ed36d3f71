// The Error of a plugin that cannot be used. Plain function, [any-thread].
#pragma once

#include <string>

namespace coupler {

// Throws Error(kPlugin) "plugin <path> <problem>"; its subject is the path.
[[noreturn]] void refuse_plugin(const std::string& path, const std::string& problem,
                                const std::string& hint);

}  // namespace coupler
