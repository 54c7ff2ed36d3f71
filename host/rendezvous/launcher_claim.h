// The table of launchers: which variables each gives its processes, and what they claim about this
// one. Pure functions over a given environment; no thread rule.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/process_info.h"

namespace coupler {

// One row a launcher. Rank and world identify it; the local pair is optional.
struct LauncherRow {
  LauncherKind kind;
  const char* name;
  const char* rank;
  const char* world;
  const char* local_rank;         // null: it has none
  const char* local_world;        // null: as above
  const char* other_local_world;  // another name some give it, or null
  bool places_launchers;          // as of LauncherClaim
};

// The most explicit first: the first that claims this process counts.
const std::vector<LauncherRow>& launcher_table();

// A variable as it was found: kept with its text, for messages.
struct FoundVariable {
  const char* name;
  std::string text;
  int number;
};
std::string shown(const FoundVariable& found);  // "RANK=1"

// Nothing where the variable is not set or empty; Error(kConfig) where it is no whole number of at
// least `least`.
std::optional<FoundVariable> read_number(const EnvironmentLookup& lookup, const char* variable,
                                         int least);

// What one launcher says about this process. Half of rank and world where the other is missing.
struct LauncherClaim {
  const LauncherRow* row = nullptr;
  std::optional<FoundVariable> rank, world, local_rank, local_world;
  // It places processes on machines, and what it starts may be a launcher again (torchrun below
  // srun, Open MPI's daemons below srun): then its variables are of that launcher, not of us.
  bool places_launchers = false;
  bool is_whole() const { return rank && world; }
};

// Nothing where the launcher did not start this process.
std::optional<LauncherClaim> read_claim(const EnvironmentLookup& lookup, const LauncherRow& row);

// Of "2(x3),1", as Slurm writes tasks per node: the number of the index-th node; nothing where the
// text is none of that kind or there is no such node.
std::optional<int> tasks_of_node(const std::string& tasks_per_node, int index);

}  // namespace coupler
