// Where state is kept while nothing uses it. A value.
#pragma once

#include <string>

namespace coupler {

struct OffloadPlace {
  std::string folder;  // on a disk; empty: host memory
  int buffers = 0;     // for a disk: blocks read ahead, and blocks queued for writing
  bool pinned = true;  // for host memory: pinned, so that copies overlap with computation
};

}  // namespace coupler
