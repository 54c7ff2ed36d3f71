// The Error of a checkpoint that cannot be used. Plain function, [any-thread].
#pragma once

#include <string>

namespace coupler::checkpoint {

// Throws Error(kIo) "<path>: <problem>", whose hint is to use another checkpoint. path: the
// checkpoint's folder or the file concerned.
[[noreturn]] void refuse_checkpoint(const std::string& path, const std::string& problem);

}  // namespace coupler::checkpoint
