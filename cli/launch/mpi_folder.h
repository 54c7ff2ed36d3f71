// MpiFolder: a private folder for the files of mpirun and its ranks (including shared memory), so
// that none outlives the job even if mpirun is killed. Single-threaded.
//
// It is in /dev/shm, where Open MPI would otherwise put its shared memory. The launcher, mpirun,
// and the guards of the launcher and of every shim use it (process/folder_use.h). The launcher
// removes it; if it was killed, the last guard does (process/process_guard.h); if no guard was
// left, the next launcher does (launch/leftovers.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::cli {

class MpiFolder {
 public:
  static constexpr const char* kParent = "/dev/shm";
  // Of its name; followed by the launcher's process id, "-", and its start time.
  static constexpr std::string_view kPrefix = "coupler-mpi-";
  // The variable that gives its path to the shims of this machine.
  static constexpr const char* kVariable = "COUPLER_SHIM_FOLDER";

  // Only chooses the path, so that the launcher's guard can know it before the folder exists.
  MpiFolder();
  ~MpiFolder();
  MpiFolder(const MpiFolder&) = delete;
  MpiFolder& operator=(const MpiFolder&) = delete;

  // Makes the folder and uses it; path() is "" afterwards if /dev/shm is not writable.
  void create();

  // Variables that make Open MPI use the folder and give its path to the shims. Empty if
  // there is no folder. On several machines the folder holds
  // only mpirun's files; the other machines, whose daemons end by themselves, have no such folder.
  std::vector<std::string> environment(bool one_machine) const;

  // "": none, as the user has chosen Open MPI's folders.
  const std::string& path() const { return path_; }

 private:
  std::string path_;  // empty: none
  UniqueFd use_;      // also mpirun's, which inherits the descriptor
};

}  // namespace coupler::cli
