// Durable files: written under a temporary name, forced to the disk, and only then renamed. Each
// object is single-threaded; different threads may write different files.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "base/sha256.h"

namespace coupler {

// Checksums of a file's chunks, which detect damage at the speed of reading: 64-bit XXH3, about ten
// times as fast as SHA-256, without protection against attackers. A range of the file can be
// checked without reading the rest. Single-threaded.

inline constexpr uint64_t kCheckedChunk = uint64_t{4} << 20;
// Bytes read or written, and hashed, at a time: they stay in the processor's cache in between.
inline constexpr size_t kCachedPiece = size_t{256} << 10;

// Of one chunk.
uint64_t chunk_sum(const void* data, size_t size);

// Of a file that is written from front to back.
class ChunkSums {
 public:
  ChunkSums();
  ~ChunkSums();
  ChunkSums(const ChunkSums&) = delete;
  ChunkSums& operator=(const ChunkSums&) = delete;

  void update(const void* data, size_t size);
  std::vector<uint64_t> finish();  // ends it

 private:
  void end_chunk();

  struct State;
  std::unique_ptr<State> state_;
  uint64_t in_chunk_ = 0;
  std::vector<uint64_t> sums_;
};

// WriteBehind: writes most of a large file from its own thread while the caller produces the next
// bytes. It bypasses the page cache if the file system supports that, which saves a copy and evicts
// nothing that training reads. Used by one thread.
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

// Throws Error(kIo) "cannot ACTION PATH: the system's message", with a hint for a full disk and for
// a folder without write permission.
[[noreturn]] void throw_io(const char* action, const std::string& path, int error,
                           const char* if_denied = "write to a folder that this user may write to");

// What was written, for a manifest.
struct WrittenFile {
  uint64_t bytes = 0;
  Bytes32 sha256{};
  // One for every kCheckedChunk bytes, the last for the rest (ChunkSums).
  std::vector<uint64_t> sums;
};

// A new file, written once from front to back. The disk stays busy while the next bytes are hashed,
// so that finish() has little left to wait for; a large file is written by a thread of its own.
class DurableFile {
 public:
  // Throws Error(kIo) naming the path if it already exists or cannot be created.
  explicit DurableFile(std::string path);
  ~DurableFile();  // removes the file unless finish() has returned
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  // Throws Error(kIo) naming the path and the system's error (a full disk, an input/output error),
  // for a large file possibly at a later call. The file is then unusable.
  void write(const void* data, size_t size);
  // Returns when the bytes are on the disk. Call at most once. The file's name is on the disk only
  // after sync_folder of its folder.
  WrittenFile finish();

  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* action, int error) const;
  void hash(const char* data, size_t size);
  void write_now(const char* data, size_t size);
  void write_behind(const char* data, size_t size);

  std::string path_;
  UniqueFd file_;
  Digest digest_;
  ChunkSums sums_;
  uint64_t bytes_ = 0;
  bool finished_ = false;
  char* room_ = nullptr;                 // behind_'s next block, if started
  size_t filled_ = 0;                    // bytes of room_
  std::unique_ptr<WriteBehind> behind_;  // for a large file; last: its thread uses file_
};

// Returns when the names in a folder are on the disk. Throws Error(kIo).
void sync_folder(const std::string& folder);

// Renames a file or folder, replacing the target if it exists, and returns when the rename is on
// the disk. The contents must be on the disk before. Throws Error(kIo).
void rename_durably(const std::string& from, const std::string& to);

// Atomically replaces a small file: the disk has the old or the new contents, never a part. Throws
// Error(kIo).
void replace_file(const std::string& path, const std::string& text);

// Hashes a file that may be larger than memory, reading it sequentially. Any thread. Throws
// Error(kIo) if it cannot be read.
WrittenFile hash_file(const std::string& path);

}  // namespace coupler
