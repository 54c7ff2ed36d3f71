// DiskSource: units stored on a disk. A separate thread writes changed units back in the background
// (write-behind); meanwhile a fill copies them from the write queue.
// [any-thread] After a failed write every later fill throws, so nothing is lost silently.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "residency/unit.h"

namespace coupler::residency {

// BlockFile: disk space for data that does not fit in memory: an unnamed file, which disappears
// with the process, however that ends. Reads and writes bypass the page cache if the file system
// supports it, so that data on the disk takes no memory. read() and write() are [any-thread] on
// different ranges; calls of grow() must not overlap.
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

  std::string folder_;
  UniqueFd file_;
  uint64_t size_ = 0;
};

class DiskSource : public OffloadSource {
 public:
  // max_queued_writes: how many units may be queued for writing, at least 1; write_back() of more
  // waits.
  DiskSource(const std::string& folder, size_t max_queued_writes);
  ~DiskSource() override;  // drops units not written yet
  DiskSource(const DiskSource&) = delete;
  DiskSource& operator=(const DiskSource&) = delete;

  void add(size_t bytes) override;  // throws Error(kIo)
  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;
  void write_back(size_t unit, BufferPool::Buffer memory) override;

 private:
  struct Place {
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  struct Waiting {
    size_t unit = 0;
    BufferPool::Buffer memory;
  };

  void work();

  BlockFile file_;
  const size_t max_queued_writes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;    // by unit
  std::deque<Waiting> waiting_;  // the first one is being written
  std::exception_ptr error_;     // of a write
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace coupler::residency
