// BlockFile: disk space for data that does not fit in memory: an unnamed file, which disappears
// with the process, however that ends. Reads and writes bypass the page cache if the file system
// supports it, so that data on the disk takes no memory. read() and write() are [any-thread] on
// different ranges; calls of grow() must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace coupler {

class BlockFile {
 public:
  // The alignment that disks require of offsets, sizes and memory.
  static constexpr size_t kAlignment = 4096;
  static constexpr uint64_t aligned(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Throws Error(kIo) naming the folder if no file can be created in it. Warns if the folder is in
  // memory (tmpfs).
  explicit BlockFile(std::string folder);

  // Appends at least `bytes` zero bytes and returns their offset, a multiple of kAlignment. Their
  // space is reserved: writing to them cannot fill the disk. Throws Error(kIo) if there is no room.
  uint64_t grow(uint64_t bytes);
  uint64_t size() const { return size_; }

  // All three arguments must be multiples of kAlignment. Throw Error(kIo) naming the folder, the
  // offset and the system's error; the contents of the range are then undefined.
  void read(uint64_t offset, void* into, size_t size) const;
  void write(uint64_t offset, const void* from, size_t size) const;

 private:
  template <class Transfer>
  void transfer(const char* action, uint64_t offset, size_t size, const Transfer& one) const;
  [[noreturn]] void fail(const char* action, uint64_t offset, int error) const;
  bool stop_going_direct() const;

  std::string folder_;
  UniqueFd file_;
  uint64_t size_ = 0;
};

}  // namespace coupler
