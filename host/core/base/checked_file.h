// CheckedFile: reads ranges of a file whose size and checksums are known, directly into the
// caller's memory. Each object is single-threaded; different threads may use different objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace coupler {

class CheckedFile {
 public:
  // sums: ChunkSums of the whole file. Throws Error(kIo) naming the path if it cannot be opened or
  // has another size.
  CheckedFile(std::string path, uint64_t size, std::vector<uint64_t> sums);

  // Throws Error(kIo) naming the path and the position of a damaged chunk; the memory's contents
  // are then undefined. Reads at most one extra chunk at either end.
  void read(uint64_t offset, void* into, size_t size);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

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
