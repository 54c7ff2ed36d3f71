// AppendFile: a file that grows by whole pieces: what could not be written whole is taken back and
// tried again, so that a disk that was full for a while leaves no torn line. Used by one thread at
// a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace coupler {

class AppendFile {
 public:
  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Makes the folder where it is missing, and the file, or goes on behind what is in it. Throws
  // Error(kIo) naming what cannot be written.
  void open(const std::string& folder, const std::string& name);

  // How many bytes lay in the file when it was opened.
  size_t found() const { return found_; }
  const std::string& path() const { return path_; }

  // Added to what flush writes.
  std::string& pending() { return pending_; }
  // Throws TrackerUnavailable where not all of it can be written; then all of it stays pending.
  void flush();
  // Also onto the disk, as far as that can be done: the file is not needed to go on.
  void close();

 private:
  void restore_size() const;

  std::string path_;
  std::string pending_;
  int fd_ = -1;
  size_t found_ = 0;
  size_t size_ = 0;  // of what was written whole
};

}  // namespace coupler
