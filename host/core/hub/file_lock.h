// FileLock: the right to download something, held by one process at a time, with a sign of life for
// those who wait. The lock is flock's, as in Python's filelock, so that it also excludes
// huggingface_hub; the system releases it when the process ends. If the file system has no locks,
// every process has the right: what is downloaded is checked, and renamed when complete. Used by
// one thread.
#pragma once

#include <chrono>
#include <string>

#include "base/file_descriptor.h"

namespace coupler::hub {

class FileLock {
 public:
  // Waits for the lock. what: what its holder does, for messages. Throws Error(kTimeout) if the
  // holder has given no sign of life for `patience`, Error(kIo) if the file cannot be created.
  FileLock(const std::string& path, const std::string& what, std::chrono::milliseconds patience);

  // Whether another process held it at first.
  bool waited() const { return waited_; }

  // The sign of life; cheap, to be given at least every few seconds.
  void beat();

  // What the previous holder has left for those who waited: why it failed; "" if it did not.
  std::string left() const;
  void leave(const std::string& text);

 private:
  std::string path_;
  UniqueFd file_;
  bool waited_ = false;
  std::chrono::steady_clock::time_point beaten_;
};

}  // namespace coupler::hub
