// A whole file mapped into memory. Writing to the bytes changes this process's private copy of a
// page, never the file. Immutable after open; any thread may read.
//
// If another process truncates the file while it is mapped, this process dies with SIGBUS. Writers
// must replace files by rename, as all of Coupler's do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace coupler {

class MappedFile {
 public:
  // Throws Error(kIo) if the path cannot be opened, is not a regular file or cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  uint8_t* data() const { return data_; }  // null if the file is empty
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, uint8_t* data, uint64_t size);

  std::string path_;
  uint8_t* data_;
  uint64_t size_;
};

}  // namespace coupler
