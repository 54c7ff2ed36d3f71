// Arena: memory of one rank that its peers can reach (coupler.memory/1). The segment's file has
// room for an arena of each rank, all of them together as large as the machine's memory; a page
// costs nothing until it is allocated. A rank maps all arenas when it first allocates, at addresses
// of its own, so ranks name memory by its place: its offset in the file. An arena lives until its
// communicator and its last block have ended. Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "common/error.h"
#include "common/local_socket.h"
#include "shm/segment.h"

namespace db::shm {

// How large each rank's arena is; 0: this process may have no file of that size.
uint64_t arena_bytes_for(int32_t ranks, uint64_t chunk_bytes);

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Allocated memory: zeros, whole pages. Its destructor frees it.
  class Block {
   public:
    ~Block() { arena_->give_back(place_, bytes_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    uint8_t* data() const { return arena_->at(place_); }

   private:
    friend class Arena;
    Block(std::shared_ptr<Arena> arena, uint64_t place, uint64_t bytes)
        : arena_(std::move(arena)), place_(place), bytes_(bytes) {}

    const std::shared_ptr<Arena> arena_;
    const uint64_t place_, bytes_;
  };

  // file: the segment's.
  Arena(Descriptor file, const Layout& layout, int32_t rank);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Whether it has any memory to give, ever.
  bool has_room() const { return own_end_ > own_begin_; }
  // bytes > 0. Null on failure, which changes nothing.
  std::unique_ptr<Block> allocate(uint64_t bytes, Failure* failure);

  // Whether this rank can reach its peers' arenas. Once true, it remains so.
  bool is_mapped() const { return base_.load(std::memory_order_acquire) != nullptr; }
  // The place of a buffer in this rank's own arena; 0: it is elsewhere.
  uint64_t place_of(const void* buffer, uint64_t bytes) const;
  // Memory of any rank's arena, by its place. Only if is_mapped().
  uint8_t* at(uint64_t place) const {
    return base_.load(std::memory_order_relaxed) + (place - begin_);
  }

 private:
  Failure map();
  void give_back(uint64_t place, uint64_t bytes);
  Failure commit(uint64_t place, uint64_t bytes);

  const Descriptor file_;
  const uint64_t begin_, bytes_;  // of all arenas in the file
  const uint64_t own_begin_, own_end_;
  std::atomic<uint8_t*> base_{nullptr};  // where they are mapped

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // of its own arena: place -> bytes; neighbors are one
};

}  // namespace db::shm
