// Files that are not lost: written beside, forced to the disk, and only then given their names.
// Single-threaded each; different files by different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/chunk_sums.h"
#include "io/write_behind.h"
#include "rendezvous/secret.h"
#include "rendezvous/unique_fd.h"

namespace coupler {

// Throws Error(kIo) "cannot ACTION PATH: what the system says", with what to do about a full disk
// and a folder that may not be written to.
[[noreturn]] void throw_io(const char* action, const std::string& path, int error);

// What was written: for a manifest.
struct WrittenFile {
  uint64_t bytes = 0;
  Bytes32 sha256{};
  // Of every kCheckedChunk bytes, the last of what is left: see chunk_sums.h.
  std::vector<uint64_t> sums;
};

// A new file, written once from front to back. The disk is kept busy while the next bytes are
// hashed, so that finish() has little left to wait for; of a large file by a thread of its own.
class DurableFile {
 public:
  // Throws Error(kIo) naming the path where it exists already or cannot be made.
  explicit DurableFile(std::string path);
  ~DurableFile();  // removes the file unless finish() has returned
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  // Throws Error(kIo) naming the path and what the system says (a full disk, an input/output
  // error), of a large file maybe at a later call: the file is of no use then.
  void write(const void* data, size_t size);
  // Returns when the bytes are on the disk. At most once. The file's name is on the disk after
  // sync_folder of its folder.
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
  char* room_ = nullptr;                 // behind_'s next block, if it has begun
  size_t filled_ = 0;                    // of it
  std::unique_ptr<WriteBehind> behind_;  // of a large file; last: its thread uses file_
};

// Returns when the names in a folder are on the disk. Throws Error(kIo).
void sync_folder(const std::string& folder);

// Gives a file or folder another name in place of what has it, if anything, and returns when that
// is on the disk. What is renamed must be on the disk before. Throws Error(kIo).
void rename_durably(const std::string& from, const std::string& to);

// A whole small file in place of what is there: either is on the disk, never a part. Throws
// Error(kIo).
void replace_file(const std::string& path, const std::string& text);

}  // namespace coupler
