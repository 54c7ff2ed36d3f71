// Files that this user's jobs left because every process that would have removed them was killed.
// Touches only unused files of this user. Plain functions, [any-thread].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::cli {

struct Leftover {
  std::string path;
  std::string what;          // what it is and which process it belonged to
  uint64_t bytes = 0;        // of disk or memory
  std::string failure = {};  // why it could not be removed; "": removed, or kept on request
};
using Leftovers = std::vector<Leftover>;

enum class Then { kKeep, kRemove };

// What launchers leave in /dev/shm. Cheap enough for every start: reads one folder.
Leftovers leftovers_of_launchers(Then then);

// The same, plus the stores of ranks that no `coupler launch` started, and what Open MPI leaves
// outside the launcher's folder.
Leftovers all_leftovers(Then then);

}  // namespace coupler::cli
