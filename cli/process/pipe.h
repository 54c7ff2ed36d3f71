// Pipe: two ends, both close-on-exec. Plain data; no threading rule.
#pragma once

#include "base/unique_fd.h"

namespace coupler::cli {

struct Pipe {
  UniqueFd reading, writing;
};

// Throws Error(kIo).
Pipe make_pipe();

}  // namespace coupler::cli
