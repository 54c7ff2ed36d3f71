// Creates, lists and removes folders, durably. Plain functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler::checkpoint {

// Creates a folder and its missing parents with the user's umask, and returns the path without
// links once all names are on disk. Existing folders are left as they are. Throws Error(kIo),
// naming a file that is in the way.
std::string make_folders(const std::string& path);

// The names in a folder, in any order. Throws Error(kIo) if it cannot be read.
std::vector<std::string> names_in(const std::string& folder);

// Removes a folder of checkpoint files with all its contents; links are not followed. It is not an
// error if the folder does not exist. Throws Error(kIo) naming what cannot be removed.
void remove_folder(const std::string& path);

// FolderLock: the exclusive right to write checkpoints into a folder, held by one job at a time.
// The system releases it when the process ends, however it ends; nothing on disk needs cleaning up.
// It also excludes other machines if the file system's locks do (NFS). Not thread-safe.
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
