// Pipe: two ends, both close-on-exec. Plain data; no threading rule.
#pragma once

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

struct Pipe {
  UniqueFd reading, writing;
};

// Throws Error(kIo).
Pipe make_pipe();

}  // namespace coupler::cli
