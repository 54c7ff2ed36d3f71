// Parquet files, and Arrow IPC files and streams, through libcoupler_arrow, which is opened when
// the first such file is. The file is mapped; a row group of Parquet is decoded when one of its
// rows is read. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "datasets/table.h"

namespace coupler::datasets {

// A decoded row group or record batch.
class ArrowChunk;

// The chunks that were used last, as many as fit. At least one, however large it is.
class ChunkCache {
 public:
  explicit ChunkCache(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  size_t size();  // of chunks
  bool contains(const void* owner, size_t chunk);

  // owner: who asks. None if it is not, or not any more, in the cache.
  std::shared_ptr<const ArrowChunk> find(const void* owner, size_t chunk);
  void insert(const void* owner, size_t chunk, std::shared_ptr<const ArrowChunk> value,
              uint64_t bytes);
  // Forgets the owner's chunks.
  void erase(const void* owner);

 private:
  using Key = std::pair<const void*, size_t>;
  struct Entry {
    Key key;
    std::shared_ptr<const ArrowChunk> value;
    uint64_t bytes;
  };

  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::map<Key, std::list<Entry>::iterator> places_;
  uint64_t bytes_ = 0;
  const uint64_t most_bytes_;
};

// Throws Error(kIo) naming the path if it cannot be read, is damaged or has a column of a type that
// rows cannot have, and Error(kUnsupported) with the remedy if libcoupler_arrow is not there.
std::shared_ptr<const Table> open_arrow(const std::string& path, bool is_parquet,
                                        std::shared_ptr<ChunkCache> cache);

}  // namespace coupler::datasets
