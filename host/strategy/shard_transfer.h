// Moves units between the ranks of a group: whole from shards, and sums of gradients into shards.
// Pure functions; collective on comm, whose thread rules hold.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "strategy/shard_layout.h"

namespace coupler {

// shard: [layout.shard_numel] of this rank. whole: [layout.numel] of `type`; padding between
// parameters is not written where it belongs to no transfer. shard may lie in whole, where its
// elements belong.
void gather_unit(Communicator& comm, const ShardLayout& layout, at::ScalarType type,
                 const void* shard, void* whole, BufferPool& pool);

// A reduction under way; its memory stays as it is until wait() has returned.
class UnitReduction {
 public:
  void wait();

 private:
  friend UnitReduction reduce_unit(Communicator&, const ShardLayout&, at::ScalarType,
                                   const std::vector<void*>&, const void*, void*, BufferPool&,
                                   bool);
  std::vector<BufferPool::Buffer> packed_;  // before works_, which read it
  std::vector<Work> works_;
};

// The sum over ranks of a whole unit, of which each keeps its shard. sources: for each transfer of
// the layout that is not packed, the memory of its run; the packed one is read from whole. shard
// may lie in whole (where its elements belong), which is then left unspecified. Where nothing has a
// gradient nothing is moved. Without overlap it is complete on return.
UnitReduction reduce_unit(Communicator& comm, const ShardLayout& layout, at::ScalarType type,
                          const std::vector<void*>& sources, const void* whole, void* shard,
                          BufferPool& pool, bool overlap);

// Throws Error(kUnsupported) where the transport under comm lacks what the two need.
void require_transfers(const Communicator& comm, at::ScalarType gathered, at::ScalarType reduced);

}  // namespace coupler
