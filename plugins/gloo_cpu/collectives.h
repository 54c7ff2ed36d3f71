// Collectives: every collective of the ABI as one or two rounds of messages between all ranks.
//
// Every rank is connected to every other, so a reduction needs no ring: each rank sends part j of
// its data to rank j and combines what it gets for its own part, in rank order from itself on,
// while it arrives; a second round spreads the results. That moves as few bytes as a ring does, in
// two steps instead of 2 * (W - 1), and each part is combined by one rank only, so that all ranks
// end with the same bits. Small data goes in one round instead: everybody sends everything to
// everybody and combines it in rank order. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "lanes.h"

namespace db::gloo_cpu {

struct CollectiveLimits {
  uint64_t exchange_bytes = 0;  // one round up to this many bytes times the other ranks
  int64_t spin_ns = 0;          // for blocking operations
};

class Collectives {
 public:
  // lanes: NULL where size is 1.
  Collectives(int32_t rank, int32_t size, Lanes* lanes, CollectiveLimits limits);

  // Performs op, which is validated and no SEND or RECV. A timeout comes back without a message.
  Failure run(const Op& op);

  uint64_t sequence() const { return sequence_; }   // of the last collective started
  uint32_t round() const { return header_.round; }  // of it: the one it is in

 private:
  // A part of a buffer, in bytes.
  struct Part {
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  Failure dispatch();
  Failure all_reduce();
  Failure exchange_all();
  Failure reduce();
  Failure broadcast();
  Failure all_gather();
  Failure reduce_scatter();
  Failure all_to_all();
  Failure gather();
  Failure scatter();
  Failure barrier();

  // A round: begin, then any number of send and receive, then finish.
  void begin();
  void send(int32_t peer, const void* data, uint64_t bytes);
  void receive(int32_t peer, void* data, uint64_t bytes);
  // data = own (+) part of the first peer after this one (+) ...
  void receive_combined(const void* own, void* data, uint64_t bytes);
  Failure finish();

  int32_t peer_at(int32_t step) const { return (rank_ + step) % size_; }
  bool is_small(uint64_t bytes) const;
  void even_parts(uint64_t count);             // of an undivided buffer
  void equal_parts(uint64_t count);            // of W times count elements
  void counted_parts(const uint64_t* counts);  // of a V kind
  Part part(int32_t rank) const { return parts_[static_cast<size_t>(rank)]; }
  uint8_t* scratch(uint64_t bytes);
  const uint8_t* contribution(void* room, uint64_t count);  // send, scaled where op says so
  void finish_average(void* data, uint64_t bytes) const;
  uint8_t* recv() const { return static_cast<uint8_t*>(op_->recv); }
  const uint8_t* sent() const { return static_cast<const uint8_t*>(op_->send); }

  const int32_t rank_;
  const int32_t size_;
  Lanes* const lanes_;
  const CollectiveLimits limits_;

  // Of the operation that is running.
  const Op* op_ = nullptr;
  ReduceFunction combine_ = nullptr;
  Header header_;
  Group group_;
  uint64_t sequence_ = 0;
  std::vector<Outgoing> outgoing_;  // room for one a peer
  std::vector<Incoming> incoming_;
  std::vector<Part> parts_;
  std::unique_ptr<uint8_t[]> scratch_;
  uint64_t scratch_size_ = 0;
};

}  // namespace db::gloo_cpu
