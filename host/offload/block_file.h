// BlockFile: room on a disk for memory that does not fit: a file without a name, which is gone with
// the process, however that ends. Reads and writes go past the page cache where the file system can
// do that, so that what is on the disk takes no memory. read() and write() are [any-thread] on
// different ranges; grow() is not to run beside itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/unique_fd.h"

namespace coupler {

class BlockFile {
 public:
  // Of offsets, sizes and memory: what disks ask for.
  static constexpr size_t kAlignment = 4096;
  static constexpr uint64_t aligned(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Throws Error(kIo) naming the folder where no file can be made in it. Warns where the folder is
  // memory itself (tmpfs).
  explicit BlockFile(std::string folder);

  // The offset of so many more bytes, zeros, a multiple of kAlignment. They are the file's from now
  // on: writing to them does not fill the disk. Throws Error(kIo) where there is no room.
  uint64_t grow(uint64_t bytes);
  uint64_t size() const { return size_; }

  // Whole multiples of kAlignment, all three. Throw Error(kIo) naming the folder, the place and
  // what the system says; nothing is to be believed of the range then.
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
