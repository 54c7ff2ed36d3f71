// FolderLock: the exclusive right to write checkpoints into a folder, held by one job at a time.
// The system releases it when the process ends, however it ends; nothing on disk needs cleaning up.
// It also excludes other machines if the file system's locks do (NFS). Not thread-safe.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace coupler::checkpoint {

class FolderLock {
 public:
  // Throws Error(kIo) naming the process that holds the lock, its machine and since when, or the
  // system's error.
  explicit FolderLock(const std::string& folder);

 private:
  // The lock belongs to the open file, not to the process: it also excludes a second writer in this
  // process, and closing another descriptor of the file does not release it.
  UniqueFd file_;
};

}  // namespace coupler::checkpoint
