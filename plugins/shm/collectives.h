// Collectives: every collective of the ABI on the shared segment.
//
// What fits into a rank's slot (or, if tiny, into its entry) takes one synchronization: each rank
// writes, enters, waits for the others, and reads. Larger data moves in chunks through staging
// memory, two in flight, so that one synchronization per chunk is enough: before a rank writes a
// chunk, all have read the one before the last. all_reduce and reduce divide each chunk among the
// ranks, and take two. Buffers that all ranks can reach (arena.h) are not copied: ranks read and
// write each other's. Every rank combines in rank order, or only one does, so all ranks get the
// same bits. Thread rule: one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "common/reduce.h"
#include "shm/arena.h"
#include "shm/segment.h"
#include "shm/synchronizer.h"

namespace db::shm {

class Collectives {
 public:
  // segment, synchronizer, arena: NULL if size is 1.
  Collectives(int32_t rank, int32_t size, Segment* segment, Synchronizer* synchronizer,
              Arena* arena);

  // Performs op, which is validated and not a SEND or RECV.
  Failure run(const Op& op);

 private:
  // A stretch of every part that is moved at once. Parts lie stride bytes apart in the buffer.
  struct Stretch {
    uint64_t offset = 0;  // in each part, in bytes
    uint64_t limit = 0;   // bytes at most
    uint64_t stride = 0;

    uint64_t of(uint64_t part_bytes) const {  // how much of a part
      return part_bytes <= offset ? 0 : std::min(part_bytes - offset, limit);
    }
  };

  Failure run_kind();
  Failure alone();
  Failure all_reduce();
  Failure reduce_in_chunks(bool takes);
  Failure reduce_scatter();
  Failure broadcast();
  Failure all_gather();
  Failure gather();
  Failure scatter();
  Failure all_to_all();
  Failure barrier();

  // Where a rank's buffers are, as it shows them in its entry when it enters a collective with
  // large data. Places are those of the arena.
  struct Places {
    uint64_t maps = 0;  // 1: it can reach the arenas of its peers
    uint64_t send = 0, recv = 0;
  };
  static_assert(sizeof(Places) <= sizeof(Entry::data));

  // Enters with large data, and waits for all.
  Failure enter_large();
  // Whether the ranks have all of the running operation's buffers that others need in arenas.
  bool is_reachable() const;
  // Performs the operation on them.
  Failure run_directly();
  void reduce_directly();
  void reduce_scatter_directly();
  void all_gather_directly();
  void broadcast_directly();
  // Whether parts of at most `most` bytes do not fit into a slot.
  bool is_large(uint64_t most, bool personal) const;
  // Whether the running operation is large and of a kind that may be direct.
  bool may_be_direct() const;
  const Places& places(int32_t rank) const { return places_[static_cast<size_t>(rank)]; }
  template <class Each>
  void each_block(uint64_t begin, uint64_t end, const Each& each);

  Failure agree_on_counts(uint64_t* most);

  // Moves parts of at most `most` bytes, the same number on all ranks: put(buffer, stretch) writes
  // this rank's stretch, take(stretch) reads those of the others. personal: a rank has one part for
  // each rank instead of one for all.
  template <class Put, class Take>
  Failure move(uint64_t most, bool personal, const Put& put, const Take& take);
  // The same, always in chunks: all ranks have entered.
  template <class Put, class Take>
  Failure move_in_chunks(uint64_t most, bool personal, const Put& put, const Take& take);

  // Where rank's stretch is, for take; personal: the one for this rank.
  const uint8_t* from(int32_t rank) const { return sources_[static_cast<size_t>(rank)]; }
  template <class Buffer>
  void find_sources(uint64_t offset, const Buffer& buffer_of);

  // out = this rank's bytes, own, and those of the others, from(), combined in rank order. out may
  // be own if this rank is one of the first two, and must not overlap them otherwise.
  void combine(void* out, const uint8_t* own, uint64_t bytes);
  void finish_average(void* data, uint64_t bytes) const;
  void put_contribution(uint8_t* to, uint64_t offset, uint64_t bytes) const;
  void deliver(uint8_t* to, const uint8_t* data, uint64_t bytes) const;
  uint64_t largest_part() const;  // of recv_counts or count, in bytes
  uint64_t part_bytes(const uint64_t* counts, int32_t rank) const {
    return part_size(*op_, counts, rank) * op_->element;
  }
  // Bytes of the operation's buffers; a buffer of a rank that has no part may be NULL.
  uint8_t* recv(uint64_t offset = 0) const {
    return op_->recv == nullptr ? nullptr : static_cast<uint8_t*>(op_->recv) + offset;
  }
  const uint8_t* sent(uint64_t offset = 0) const {
    return op_->send == nullptr ? nullptr : static_cast<const uint8_t*>(op_->send) + offset;
  }

  const int32_t rank_, size_;
  Segment* const segment_;
  Synchronizer* const synchronizer_;
  std::vector<const uint8_t*> sources_;  // by rank
  std::vector<uint64_t> offsets_;        // by rank, of parts of the running operation
  Arena* const arena_;
  std::vector<Places> places_;  // by rank
  std::vector<uint8_t> block_;  // room for a block that cannot be combined in place

  // Of the running operation.
  const Op* op_ = nullptr;
  ReduceFunction combine_ = nullptr;
  bool past_caches_ = false;
  bool entered_ = false;  // and all others have
};

}  // namespace db::shm
