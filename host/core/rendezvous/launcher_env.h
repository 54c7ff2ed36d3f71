// The table of launchers: which variables each sets for its processes, and what they claim about
// this one. Pure functions of the given environment; no threading constraints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/process_info.h"

namespace coupler::rendezvous {

// One row per launcher. Rank and world size identify it; the local pair is optional.
struct LauncherRow {
  LauncherKind kind;
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;         // null: it has none
  const char* local_world_size;   // null: as above
  const char* other_local_world;  // an alternative name, or null
  bool places_launchers;          // see LauncherClaim
};

// Most explicit first: the first complete claim identifies this process.
const std::vector<LauncherRow>& launcher_table();

// A variable as it was found, with its original string for messages.
struct FoundVariable {
  const char* name;
  std::string text;
  int number;
};
std::string for_message(const FoundVariable& found);  // "RANK=1"

// nullopt if the variable is unset or empty; Error(kConfig) if it is not a whole number of at least
// `least`.
std::optional<FoundVariable> read_number(const EnvironmentLookup& lookup, const char* variable,
                                         int least);

// What one launcher claims about this process. Either rank or world size may be missing, not both.
struct LauncherClaim {
  const LauncherRow* row = nullptr;
  std::optional<FoundVariable> rank, world_size, local_rank, local_world_size;
  // It places processes on machines, and what it starts may itself be a launcher (torchrun or Open
  // MPI's daemons under srun): its variables then describe that launcher, not this process.
  bool places_launchers = false;
  bool is_whole() const { return rank && world_size; }
};

// nullopt if the launcher did not start this process.
std::optional<LauncherClaim> read_claim(const EnvironmentLookup& lookup, const LauncherRow& row);

// From Slurm's tasks per node, such as "2(x3),1": the number of tasks on the index-th node; nullopt
// if the string is malformed or there is no such node.
std::optional<int> tasks_of_node(const std::string& tasks_per_node, int index);

}  // namespace coupler::rendezvous
