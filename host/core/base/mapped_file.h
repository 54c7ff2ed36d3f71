// A whole file mapped into memory. Writing to the bytes changes this process's private copy of a
// page, never the file. Immutable after open; any thread may read.
//
// If another process truncates the file while it is mapped, this process dies with SIGBUS. Writers
// must replace files by rename, as all of Coupler's do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

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

// Guarded mappings: files that models use in place. If another process truncates one meanwhile, the
// kernel sends SIGBUS; for these files the process then exits with an error that names the file.
// The handler is installed with the first guard; other faults go to the previous handler.
// [any-thread]

// Guards the file's mapping while any of the results for it is alive; they keep the file mapped. At
// most 4,096 files are guarded at a time; further ones are not.
std::shared_ptr<const void> guard_mapping(const std::shared_ptr<const MappedFile>& file);

// Brings a range of a mapping into memory, so that later reads do not wait for the disk. Throws
// Error(kIo) naming the file if it has become shorter or the disk fails.
void populate(const MappedFile& file, size_t begin, size_t bytes);

// Asks the kernel to read a range from the disk, and returns at once.
void advise_in(const MappedFile& file, size_t begin, size_t bytes);

// Removes a range from this process's memory, with neighboring pages that may have been read with
// it; the page cache may keep them. Neighboring pages still in use return from there on access.
void drop(const MappedFile& file, size_t begin, size_t bytes);

// CheckedFile: reads ranges of a file whose size and checksums are known, directly into the
// caller's memory. Each object is single-threaded; different threads may use different objects.
class CheckedFile {
 public:
  // sums: ChunkSums of the whole file. Throws Error(kIo) naming the path if it cannot be opened or
  // has another size.
  CheckedFile(std::string path, uint64_t size, std::vector<uint64_t> sums);

  // Throws Error(kIo) naming the path and the position of a damaged chunk; the memory's contents
  // are then undefined. Reads at most one extra chunk at either end.
  void read(uint64_t offset, void* into, size_t size);

 private:
  void read_chunk(uint64_t chunk, char* into);
  void read_ahead(uint64_t chunk);
  [[noreturn]] void fail(uint64_t chunk, const std::string& why) const;

  std::string path_;
  uint64_t size_;
  std::vector<uint64_t> sums_;
  UniqueFd file_;
  std::vector<char> edge_;  // the last chunk read of which only a part was requested
  uint64_t edge_chunk_ = ~uint64_t{0};
  uint64_t ahead_ = 0;  // earlier chunks are read or being read
};

}  // namespace coupler
