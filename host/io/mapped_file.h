// A whole file mapped into memory. The bytes are the file's; writing to them changes this process's
// private copy of a page, never the file. Immutable after open; any thread may read.
//
// A file that another process shortens while it is mapped ends this process with SIGBUS: writers
// replace files by rename, as all of Coupler's do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace coupler {

class MappedFile {
 public:
  // Throws Error(kIo) where the path cannot be opened, is no regular file or cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  uint8_t* data() const { return data_; }  // null where the file is empty
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, uint8_t* data, uint64_t size);

  std::string path_;
  uint8_t* data_;
  uint64_t size_;
};

}  // namespace coupler
