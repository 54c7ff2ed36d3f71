// WriteBehind: writes the greater part of a large file from a thread of its own, while the next
// bytes are made, and past the page cache where the file system can do that: no copy into memory
// that has to be found first, nothing driven out of the cache that a training reads. Used by one
// thread.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

namespace coupler {

class WriteBehind {
 public:
  static constexpr size_t kBlock = size_t{4} << 20;
  // Of the offset at which it begins, for the disk's sake.
  static constexpr size_t kAlignment = 4096;

  // The file stays the caller's, who leaves it alone meanwhile.
  WriteBehind(int file, uint64_t offset);
  ~WriteBehind();  // leaves out what is not written yet
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Memory for the next kBlock bytes, once there is some: waits as long as a write takes. Null
  // where writing has failed.
  char* room();
  // Writes the first bytes of room(). Less than kBlock only the last time.
  void write(size_t size);
  // Waits until all is written; the system's error, 0 where there is none.
  int finish();

 private:
  static constexpr size_t kBlocks = 3;  // filled, waiting, being written
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  char* block(uint64_t number) const { return memory_.get() + number % kBlocks * kBlock; }
  void work();
  int write_block(const char* data, size_t size);
  void set_direct(bool direct);

  const int file_;
  const std::unique_ptr<char, Free> memory_;
  uint64_t offset_;      // the thread's
  bool direct_ = false;  // the thread's: past the page cache

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<size_t, kBlocks> sizes_{};
  uint64_t filled_ = 0, written_ = 0;  // blocks
  int error_ = 0;
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace coupler
