// Moves units between the ranks of a group: whole from shards, and sums of gradients into shards.
// Pure functions; collective on comm, whose thread rules hold. All memory is where the pool's is.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "strategy/coded_scatter.h"
#include "strategy/gradient_codec.h"
#include "strategy/shard_layout.h"

namespace coupler {

// shard: [layout.shard_numel] of this rank. whole: [layout.numel] of `type`; padding between
// parameters is not written where it belongs to no transfer. shard may lie in whole, where its
// elements belong.
void gather_unit(Communicator& comm, const ShardLayout& layout, at::ScalarType type,
                 const void* shard, void* whole, BufferPool& pool);

// How a unit's gradients in fp32 are encoded on their way.
struct UnitCodec {
  std::shared_ptr<const GradientCodec> codec;  // null: not at all
  std::vector<at::Tensor> errors;  // by transfer, [numel]: carried on; undefined without feedback
};

// A reduction under way; its memory stays as it is until wait() has returned.
class UnitReduction {
 public:
  void wait();

 private:
  friend UnitReduction reduce_unit(Communicator&, const ShardLayout&, at::ScalarType,
                                   const std::vector<const void*>&, void*, void*, BufferPool&,
                                   const UnitCodec&, bool);
  std::vector<BufferPool::Buffer> packed_;  // before works_, which read it
  std::vector<Work> works_;
  std::vector<CodedScatter> coded_;
};

// The sum over ranks of a unit's gradients, of which each keeps its shard. alone: for each
// transfer, the gradient that travels alone, if it is one. staging: [layout.staging_numel]. shard
// may lie in staging (where its elements belong), which is then left unspecified, as with a codec
// all gradients are. Where nothing has a gradient nothing is moved. Without overlap no collective
// is under way on return.
UnitReduction reduce_unit(Communicator& comm, const ShardLayout& layout, at::ScalarType type,
                          const std::vector<const void*>& alone, void* staging, void* shard,
                          BufferPool& pool, const UnitCodec& coded, bool overlap);

// Throws Error(kUnsupported) where the transport under comm lacks what the two need.
void require_transfers(const Communicator& comm, at::ScalarType gathered, at::ScalarType reduced);

}  // namespace coupler
