// Collectives: every collective of the ABI as one or two rounds of messages between all ranks, for
// many ranks in more rounds with fewer messages, or libgloo's version if the option requests that.
//
// Every rank is connected to every other, so a reduction needs no ring: each rank sends part j of
// its data to rank j and combines what arrives for its own part, in rank order starting at itself,
// as it arrives; a second round spreads the results. That moves as few bytes as a ring, in two
// steps instead of 2 * (W - 1). Only one rank combines each part, so all ranks get the same bits.
// Small data takes one round instead: every rank sends everything to every other rank and combines
// it in rank order.
//
// A round between all ranks costs each of them W - 1 messages. From halving_ranks on, the rounds of
// circulant.h take its place in reduce_scatter, all_gather, barrier and both forms of all_reduce:
// ceil(log2(W)) rounds with one message each way, which move the same bytes. The default follows
// from the model of docs/internals/simulated.md, in which a message takes o = 1.5 us of each end's
// time and a = 15 us on its way. A round between all takes (W - 1) * 2 * o + a, halving
// ceil(log2(W)) * (2 * o + a): 84 and 90 us for 24 ranks, 108 and 90 for 32, 780 and 144 for 256.
// The bytes take as long either way, and in a ring, so the size of the data does not decide. (A
// ring, with W - 1 rounds, would gain only in a network that is narrower between distant ranks.)
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "gloo_cpu/circulant.h"
#include "gloo_cpu/connection_engine.h"
#include "gloo_cpu/gloo_collectives.h"

namespace db::gloo_cpu {

// Copies between buffers that may be identical or empty.
inline void copy(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

struct CollectiveLimits {
  uint64_t exchange_bytes = 0;       // one round if bytes * (W - 1) is at most this
  uint64_t chunk_bytes = 0;          // combined at once; a multiple of 64
  uint64_t pair_exchange_bytes = 0;  // for two ranks, where one round moves no more bytes than two
  int32_t halving_ranks = 2;         // circulant rounds from this many ranks on
  int64_t spin_ns = 0;               // for blocking operations
  bool by_libgloo = false;           // use libgloo for every collective that it has
};

class Collectives {
 public:
  // engine: borrowed; NULL if size is 1.
  Collectives(int32_t rank, int32_t size, ConnectionEngine* engine, CollectiveLimits limits);

  // Performs op, which is validated and not a SEND or RECV. A timeout comes without a message.
  Failure run(const Op& op);

  uint64_t sequence() const { return sequence_; }  // of the last collective started
  // Whether it is in a round in which every rank sends at once, without waiting for another.
  bool in_first_round() const { return !in_libgloo_ && header_.round == 0; }
  // The ranks that are known to have started the last collective, since it received what they, or
  // ranks that had received from them, sent.
  std::vector<int32_t> received_from() const;

 private:
  // A part of a buffer, in bytes.
  struct Part {
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  Failure run_kind();
  Failure all_reduce();
  Failure exchange_all();
  Failure reduce_and_spread(const uint8_t* own);
  Failure reduce_by_halving(const uint8_t* own, uint8_t* sums);
  Failure spread(uint8_t* data);
  Failure reduce();
  Failure broadcast();
  Failure all_gather();
  Failure reduce_scatter();
  Failure all_to_all();
  Failure gather();
  Failure scatter();
  Failure barrier();

  // One round of messages, at most one in each direction for every peer.
  struct Round {
    Group group;
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
  };

  // A round: begin, then send and receive, then finish. With its own slot (0 to 3), a round may
  // begin before another one is finished.
  void begin(uint32_t slot = 0);
  Header header_of(uint64_t bytes) const;
  void send(int32_t peer, const void* data, uint64_t bytes);
  void receive(int32_t peer, void* data, uint64_t bytes);
  // data = own (+) data of the first peer after this rank (+) ...
  void receive_combined(const void* own, void* data, uint64_t bytes);
  Failure finish(uint32_t slot = 0);

  bool is_small(uint64_t bytes) const;
  void even_parts(uint64_t count);  // of an undivided buffer
  void given_parts();               // of recv_counts, or of op.count elements each
  Part part(int32_t rank) const { return parts_[static_cast<size_t>(rank)]; }
  Part joined(const PartRun& run) const;
  bool halves() const { return !halving_.empty(); }
  uint8_t* scratch(uint64_t bytes);
  const uint8_t* contribution(void* room, uint64_t count);  // send, scaled if op requires it
  void finish_average(void* data, uint64_t bytes) const;
  uint8_t* recv() const { return static_cast<uint8_t*>(op_->recv); }
  const uint8_t* sent() const { return static_cast<const uint8_t*>(op_->send); }

  const int32_t rank_;
  const int32_t size_;
  ConnectionEngine* const engine_;
  const CollectiveLimits limits_;
  const std::vector<CirculantRound> halving_;       // empty: too few ranks
  std::vector<int32_t> peers_;                      // beginning after this rank
  const std::unique_ptr<GlooCollectives> libgloo_;  // NULL: not requested, or one rank

  // State of the running operation.
  const Op* op_ = nullptr;
  ReduceFunction combine_ = nullptr;
  Header header_;
  uint64_t sequence_ = 0;
  bool in_libgloo_ = false;
  Round rounds_[4];
  Round* round_ = nullptr;             // the round begun last
  Incoming* last_combined_ = nullptr;  // of this operation, to chain combining messages in order
  std::vector<int32_t> heard_;         // from whom the finished circulant rounds received
  std::vector<Part> parts_;
  std::unique_ptr<uint8_t[]> scratch_;
  uint64_t scratch_size_ = 0;
};

}  // namespace db::gloo_cpu
