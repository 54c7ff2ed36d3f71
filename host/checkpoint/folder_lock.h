// The right to write checkpoints into a folder, which one job at a time has. The system gives it
// back when the process ends, however it does; nothing on disk has to be cleared away. It also
// holds between machines where the file system locks between them (NFS does).
// Not for several threads.
#pragma once

#include <string>

#include "rendezvous/unique_fd.h"

namespace coupler::checkpoint {

class FolderLock {
 public:
  // Throws Error(kIo): naming the process that has it, with its machine and since when, or what
  // the system says.
  explicit FolderLock(const std::string& folder);

 private:
  // A lock of the open file rather than of the process: it also keeps a second writer in this
  // process out, and closing another descriptor of the file does not lose it.
  UniqueFd file_;
};

}  // namespace coupler::checkpoint
