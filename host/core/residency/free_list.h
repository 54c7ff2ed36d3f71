// FreeList: the buffers that a pool keeps for reuse, and the rule by which they are reused and
// released. Shared by BufferPool (residency/buffer_pool.h) and by estimates, which replay it
// without memory. Not thread-safe: the owner locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace coupler::residency {

template <class Buffer>  // movable, with a member `bytes`
class FreeList {
 public:
  // Returns a kept buffer if one fits, else what make() returns, a buffer of `bytes` bytes. Before
  // that, passes kept buffers to release() if they would raise the peak. suits: whether a kept
  // buffer is of the kind that is wanted.
  template <class Make, class Release, class Suits>
  Buffer take(size_t bytes, const Make& make, const Release& release, const Suits& suits) {
    // The smallest buffer that is large enough but at most a quarter larger than requested.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->bytes < bytes || it->bytes - bytes > bytes / 4 || !suits(*it)) continue;
      if (best == free_.end() || it->bytes < best->bytes) best = it;
    }
    Buffer result;
    if (best != free_.end()) {
      result = remove(best);
    } else {
      // Kept buffers must not raise the peak: buffers in use and kept ones together stay below it.
      while (!free_.empty() && out_bytes_ + free_bytes_ + bytes > peak_bytes_) {
        release(remove(free_.begin()));
      }
      result = make();
    }
    out_bytes_ += result.bytes;
    peak_bytes_ = std::max(peak_bytes_, out_bytes_);
    return result;
  }
  // The same if all buffers are of one kind.
  template <class Make, class Release>
  Buffer take(size_t bytes, const Make& make, const Release& release) {
    return take(bytes, make, release, [](const Buffer&) { return true; });
  }

  // keep: false if the buffer's allocator keeps it; then the buffer is left to the caller.
  void give_back(Buffer& buffer, bool keep = true) {
    out_bytes_ -= buffer.bytes;
    if (!keep) return;
    free_bytes_ += buffer.bytes;
    free_.push_back(std::move(buffer));
  }

  // The most bytes ever in use at one time.
  size_t peak_bytes() const { return peak_bytes_; }

 private:
  Buffer remove(typename std::vector<Buffer>::iterator at) {
    Buffer result = std::move(*at);
    free_bytes_ -= result.bytes;
    free_.erase(at);
    return result;
  }

  std::vector<Buffer> free_;
  size_t free_bytes_ = 0, out_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace coupler::residency
