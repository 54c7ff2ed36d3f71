// TemporaryFolder: a folder of its owner's own, gone with the object, and with the process in
// whatever way it ends: at a limit ctest kills a test with everything below it. A shell that is
// below nobody waits for the end of a pipe, and removes what is left. Owned by one thread.
#pragma once

#include <filesystem>
#include <string>

namespace coupler {

class TemporaryFolder {
 public:
  // NAME-XXXXXX among the temporary files. Throws std::runtime_error where it cannot be made.
  explicit TemporaryFolder(const std::string& name);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lifeline_ = -1;  // the pipe's end that nobody else has
};

}  // namespace coupler
