// WriteBehind: writes most of a large file from its own thread while the caller produces the next
// bytes. It bypasses the page cache if the file system supports that, which saves a copy and evicts
// nothing that training reads. Used by one thread.
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
  // Required alignment of the starting offset, for direct I/O.
  static constexpr size_t kAlignment = 4096;

  // Borrows the file descriptor; the caller must not use it meanwhile.
  WriteBehind(int file, uint64_t offset);
  ~WriteBehind();  // drops what is not written yet
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Memory for the next kBlock bytes; waits for a write to complete if there is none. Null if
  // writing has failed.
  char* room();
  // Writes the first bytes of room(). Only the last call may write less than kBlock.
  void write(size_t size);
  // Waits until everything is written; returns errno, or 0 on success.
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
  bool direct_ = false;  // the thread's: bypass the page cache

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<size_t, kBlocks> sizes_{};
  uint64_t filled_ = 0, written_ = 0;  // blocks
  int error_ = 0;
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace coupler
