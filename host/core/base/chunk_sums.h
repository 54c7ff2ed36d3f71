// Checksums of a file's chunks, which detect damage at the speed of reading: 64-bit XXH3, about ten
// times as fast as SHA-256, without protection against attackers. A range of the file can be
// checked without reading the rest. Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace coupler {

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

}  // namespace coupler
