#include "base/chunk_sums.h"

#define XXH_STATIC_LINKING_ONLY  // NOLINT: the header's switch for the state's definition
// On x86 the library selects the widest vectors that the processor has; this header redirects the
// functions' names to it. Elsewhere the compiler's code is used.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <utility>

namespace coupler {

struct ChunkSums::State {
  XXH3_state_t hash;
};

uint64_t chunk_sum(const void* data, size_t size) { return XXH3_64bits(data, size); }

ChunkSums::ChunkSums() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }

ChunkSums::~ChunkSums() = default;

void ChunkSums::update(const void* data, size_t size) {
  const char* rest = static_cast<const char*>(data);
  while (size > 0) {
    const size_t part = std::min<uint64_t>(size, kCheckedChunk - in_chunk_);
    XXH3_64bits_update(&state_->hash, rest, part);
    in_chunk_ += part;
    rest += part;
    size -= part;
    if (in_chunk_ == kCheckedChunk) end_chunk();
  }
}

void ChunkSums::end_chunk() {
  sums_.push_back(XXH3_64bits_digest(&state_->hash));
  XXH3_64bits_reset(&state_->hash);
  in_chunk_ = 0;
}

std::vector<uint64_t> ChunkSums::finish() {
  if (in_chunk_ > 0) end_chunk();
  return std::exchange(sums_, {});
}

}  // namespace coupler
