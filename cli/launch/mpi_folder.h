// MpiFolder: a private folder for the files mpirun and its ranks make (shared memory among them),
// so that none outlives the job even when mpirun is killed. Single-threaded.
//
// It lies in /dev/shm, where Open MPI's shared memory would be without it; the launcher removes it,
// or where it was killed its guard (process/process_guard.h), or where that was killed, too, the
// next launcher.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

class MpiFolder {
 public:
  MpiFolder();
  ~MpiFolder();
  MpiFolder(const MpiFolder&) = delete;
  MpiFolder& operator=(const MpiFolder&) = delete;

  // Makes Open MPI use it; nothing where /dev/shm cannot be written to (Open MPI then does as it
  // would) or where the user has chosen its folders. Of a job on several machines the files of
  // mpirun alone: the others, whose daemons end by themselves, have no such folder.
  std::vector<std::string> environment(bool one_machine) const;

  const std::string& path() const { return path_; }  // "": none

 private:
  std::string path_;  // empty: none
};

}  // namespace coupler::cli
