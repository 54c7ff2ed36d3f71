// Stages: a collective as three stages of operations on the bases: within the machine, across
// machines, within the machine. Large data goes through them in chunks: while one chunk is across,
// the next one is reduced, and the one before spread, within. Two kinds: of data that is the same
// size on all ranks (all_reduce, reduce, broadcast), and of parts that belong to ranks (all_gather,
// reduce_scatter). Thread rule: the holder of the queue's turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "hierarchical/base.h"
#include "hierarchical/group.h"

namespace db::hierarchical {

// Memory that a communicator keeps for its collectives; grows as needed.
class Scratch {
 public:
  // base: what gives the memory, if it can; NULL: the heap.
  explicit Scratch(const Base* base) : base_(base) {}
  // At least bytes, aligned for every type, in place of what it gave before.
  uint8_t* take(size_t bytes);

 private:
  const Base* const base_;
  std::shared_ptr<void> memory_;
  size_t bytes_ = 0;
};

// How one collective is carried out; the same on every rank.
struct Manner {
  int32_t lanes = 1;
  uint64_t chunk_bytes = 0;
};

class Stages {
 public:
  Stages(const Op& op, const Group& group, const Manner& manner)
      : op_(op), group_(group), manner_(manner) {}
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  virtual ~Stages() = default;

  virtual uint64_t chunks() const = 0;
  // Starts stage 0, 1 or 2 of chunk, if this rank has something to do in it.
  virtual Failure start(int stage, uint64_t chunk, bool blocking, Pending* pending) = 0;
  // After stage 2 of chunk. Chunk + 2 uses the same scratch memory.
  virtual void finish(uint64_t chunk) = 0;

 protected:
  const Layout& layout() const { return group_.layout; }
  // This rank takes part in stage 1.
  bool in_lane() const { return layout().index() < manner_.lanes; }
  // op with the dtype, reduction and scale of op_ in that stage: sums, divided later, for AVG, and
  // scaled only once for PREMUL_SUM.
  db_op make_op(db_kind kind, int stage) const;
  Failure start_within(db_op op, int stage, bool blocking, Pending* pending) const;
  Failure start_across(db_op op, bool blocking, Pending* pending) const;
  // Reduces data to the lanes of this machine, whose parts have counts elements (by local index):
  // stage 0. to: this rank's part.
  Failure reduce_within(const void* data, uint8_t* to, const std::vector<uint64_t>& counts,
                        uint64_t total, bool blocking, Pending* pending) const;
  // Gives all of this machine's ranks the lanes' parts of data: stage 2. own: this rank's part.
  Failure spread_within(const uint8_t* own, uint8_t* data, const std::vector<uint64_t>& counts,
                        uint64_t total, bool blocking, Pending* pending) const;

  const Op& op_;
  const Group& group_;
  const Manner manner_;
};

// Until when a stage may take. Later stages may take a little longer, so that the rank that waits
// for the one at fault is the first to give up, and not one that waits for that rank.
int64_t stage_deadline(const Op& op, int stage);

// ALL_REDUCE, REDUCE, BROADCAST.
class DataStages final : public Stages {
 public:
  DataStages(const Op& op, const Group& group, const Manner& manner, Scratch* scratch);

  uint64_t chunks() const override;
  Failure start(int stage, uint64_t chunk, bool blocking, Pending* pending) override;
  void finish(uint64_t) override {}

 private:
  struct Chunk {
    const uint8_t* in;
    uint8_t* out;
    uint64_t count;
    uint8_t* own;  // this rank's part of out
    uint64_t own_count;
  };

  Chunk chunk_at(uint64_t chunk);
  Failure start_first(const Chunk& chunk, bool blocking, Pending* pending);
  Failure start_second(const Chunk& chunk, bool blocking, Pending* pending);
  Failure start_third(const Chunk& chunk, bool blocking, Pending* pending);
  bool is_roots_machine() const;

  uint64_t chunk_ = 0;      // elements
  uint8_t* out_ = nullptr;  // two chunks, if this rank has no recv
  std::vector<uint64_t> counts_;
};

// ALL_GATHER(_V), REDUCE_SCATTER(_V).
class PartStages final : public Stages {
 public:
  PartStages(const Op& op, const Group& group, const Manner& manner, Scratch* scratch);

  uint64_t chunks() const override { return chunks_; }
  Failure start(int stage, uint64_t chunk, bool blocking, Pending* pending) override;
  void finish(uint64_t chunk) override;

 private:
  // Elements of the pieces of one chunk; all memory offsets are in elements.
  struct Sizes {
    std::vector<uint64_t> lane_at;  // by lane, and the end: where it begins in the packed data
    std::vector<uint64_t> lanes;    // by local index: of a lane; 0 if it is none
    std::vector<uint64_t> bundles;  // by machine: the clients of this rank's lane
    std::vector<uint64_t> clients;  // by local index here: the clients of that lane
    std::vector<uint64_t> own;      // by local index here: the piece of that rank
  };

  uint64_t piece(int32_t rank, uint64_t chunk) const;
  uint64_t bundle(int32_t machine, int32_t lane, uint64_t chunk) const;
  void size_chunk(uint64_t chunk);
  Failure start_gather(int stage, uint64_t chunk, bool blocking, Pending* pending);
  Failure start_scatter(int stage, uint64_t chunk, bool blocking, Pending* pending);
  // Copies the pieces of all ranks between the caller's buffer and the packed data.
  void pack(uint64_t chunk);
  void unpack(uint64_t chunk);
  template <class Copy>
  void each_piece(uint64_t chunk, const Copy& copy) const;

  uint8_t* packed(uint64_t chunk) const { return packed_ + chunk % 2 * packed_bytes_; }
  uint8_t* within(uint64_t chunk) const { return within_ + chunk % 2 * within_bytes_; }
  // A lane of this machine has clients other than itself.
  bool has_clients() const {
    return static_cast<size_t>(manner_.lanes) != layout().own_machine().size();
  }

  std::vector<uint64_t> parts_;    // by rank, elements
  std::vector<uint64_t> part_at_;  // by rank, where its part begins
  uint64_t chunk_ = 0;             // elements of each part
  uint64_t chunks_ = 0;
  uint8_t* packed_ = nullptr;  // two chunks: by lane, machine and client
  uint8_t* within_ = nullptr;  // two chunks: by local index of this machine
  size_t packed_bytes_ = 0, within_bytes_ = 0;
  Sizes sizes_;
};

}  // namespace db::hierarchical
