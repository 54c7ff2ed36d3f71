// What jobs of this user left behind because everybody was killed who would have removed it. Only
// what is this user's is touched, and what nobody uses any more. Plain functions, [any-thread].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

struct Leftover {
  std::string path;
  std::string what;          // what it is, and whose it was
  uint64_t bytes = 0;        // of disk or memory
  std::string failure = {};  // why it could not be removed; "": it is gone, or was to be kept
};
using Leftovers = std::vector<Leftover>;

enum class Then { kKeep, kRemove };

// What launchers leave in /dev/shm: one look at one folder, for every start.
Leftovers leftovers_of_launchers(Then then);

// That, and the stores that ranks opened whom nobody of ours launched, and what Open MPI leaves
// where it did not use the launcher's folder (open_mpi_leftovers.h).
Leftovers all_leftovers(Then then);

// For both: lists it, and removes it where that was asked for.
void add_leftover(Leftovers& found, const std::filesystem::path& path, std::string what, Then then);
// What is in a folder and has such a name; nothing where it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              std::string_view prefix);
// Whether it is this user's, and of that type (S_IFDIR, S_IFREG …); links are not followed.
bool is_own(const std::filesystem::path& path, unsigned type);

}  // namespace coupler::cli
