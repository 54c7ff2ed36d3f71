// Where state is while nothing uses it. A value.
#pragma once

#include <string>

namespace coupler {

struct OffloadPlace {
  std::string folder;  // on a disk; empty: host memory
  int buffers = 0;     // of a disk: blocks that are read ahead, and that wait to be written
  bool pinned = true;  // of host memory: locked, so that a device copies beside its work
};

}  // namespace coupler
