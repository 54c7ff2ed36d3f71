// Durable files: written under a temporary name, forced to the disk, and only then renamed. Each
// object is single-threaded; different threads may write different files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/chunk_sums.h"
#include "base/secret.h"
#include "base/unique_fd.h"
#include "base/write_behind.h"

namespace coupler {

// Throws Error(kIo) "cannot ACTION PATH: the system's message", with a hint for a full disk and for
// a folder without write permission.
[[noreturn]] void throw_io(const char* action, const std::string& path, int error);

// What was written, for a manifest.
struct WrittenFile {
  uint64_t bytes = 0;
  Bytes32 sha256{};
  // One for every kCheckedChunk bytes, the last for the rest: see chunk_sums.h.
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

}  // namespace coupler
