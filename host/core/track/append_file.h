// AppendFile: a file that grows by whole pieces. A partial write is undone and retried, so that a
// temporarily full disk leaves no torn line. Used by one thread at a time.
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

  // Creates the folder and the file if they are missing, or appends to the file. Throws Error(kIo)
  // naming what cannot be written.
  void open(const std::string& folder, const std::string& name);

  // The file's size when it was opened.
  size_t found() const { return found_; }
  const std::string& path() const { return path_; }

  // What the next flush writes; append to it.
  std::string& pending() { return pending_; }
  // Throws TrackerUnavailable if not all of it can be written; all of it then stays pending.
  void flush();
  // Syncs it to the disk on a best-effort basis: training does not need the file.
  void close();

 private:
  void restore_size() const;

  std::string path_;
  std::string pending_;
  int fd_ = -1;
  size_t found_ = 0;
  size_t size_ = 0;  // of the complete pieces
};

}  // namespace coupler
