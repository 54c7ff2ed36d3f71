// TemporaryFolder: its owner's own folder, removed with the object, or when the process ends in any
// way: on a timeout ctest kills a test and all its descendants. A detached shell waits for the end
// of a pipe and removes what is left. Owned by one thread.
#pragma once

#include <filesystem>
#include <string>

namespace coupler {

class TemporaryFolder {
 public:
  // NAME-XXXXXX in the temporary directory. Throws std::runtime_error if it cannot be created.
  explicit TemporaryFolder(const std::string& name);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lifeline_ = -1;  // the pipe's write end, which no other process has
};

}  // namespace coupler
