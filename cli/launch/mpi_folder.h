// MpiFolder: a private folder for the files mpirun and its ranks make (shared memory among them),
// so that none outlives the job even when mpirun is killed. Single-threaded.
//
// It lies in /dev/shm, where Open MPI's shared memory would be without it. Launcher, mpirun and the
// guards of the launcher and of every shim use it (process/folder_use.h). The launcher removes it;
// or where that was killed, the last of the guards (process/process_guard.h); or where none was
// left, the next launcher (launch/leftovers.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

class MpiFolder {
 public:
  static constexpr const char* kParent = "/dev/shm";
  // Of its name; then follow the launcher's process id, "-", and its start time.
  static constexpr std::string_view kPrefix = "coupler-mpi-";
  // The variable that tells shims of this machine where it is.
  static constexpr const char* kVariable = "COUPLER_SHIM_FOLDER";

  MpiFolder();
  ~MpiFolder();
  MpiFolder(const MpiFolder&) = delete;
  MpiFolder& operator=(const MpiFolder&) = delete;

  // Makes Open MPI use it, and the shims know it; nothing where /dev/shm cannot be written to (Open
  // MPI then does as it would) or where the user has chosen its folders. Of a job on several
  // machines the files of mpirun alone: the others, whose daemons end by themselves, have no such
  // folder.
  std::vector<std::string> environment(bool one_machine) const;

  const std::string& path() const { return path_; }  // "": none

 private:
  std::string path_;  // empty: none
  UniqueFd use_;      // mpirun's, too: it inherits the descriptor
};

}  // namespace coupler::cli
