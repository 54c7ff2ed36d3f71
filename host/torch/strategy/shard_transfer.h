// Moves units between the ranks of a group: gathers whole units from shards, and reduces gradients
// into shards. Pure functions; collective on comm, whose thread rules apply. All memory is on the
// pool's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "sharding/shard_layout.h"
#include "strategy/bucket_reduction.h"
#include "strategy/compressed_collectives.h"

namespace coupler::strategy {

// shard: [layout.shard_numel] of this rank, of whole's type. whole: [layout.numel]; padding that
// belongs to no transfer is not written. shard may alias its elements' place in whole.
void gather_unit(comm::Communicator& comm, const sharding::ShardLayout& layout,
                 const at::Tensor& shard, const at::Tensor& whole, residency::BufferPool& pool);

// How a unit's fp32 gradients are encoded between ranks.
struct UnitCodec {
  std::shared_ptr<const GradientCodec> codec;  // null: not encoded
  std::vector<at::Tensor> errors;  // by transfer, [numel], carried; undefined without feedback
};

// A reduction in flight; its memory must stay valid until wait() has returned.
class UnitReduction {
 public:
  void wait();

 private:
  friend UnitReduction reduce_unit(comm::Communicator&, const sharding::ShardLayout&,
                                   const std::vector<at::Tensor>&, const at::Tensor&,
                                   const at::Tensor&, residency::BufferPool&, const UnitCodec&,
                                   bool);
  std::vector<residency::BufferPool::Buffer> packed_;  // before works_, which read it
  std::vector<comm::Work> works_;
  std::vector<CompressedReduceScatter> coded_;
};

// Sums a unit's gradients over ranks; each rank keeps its shard. alone: for each transfer, the
// gradient sent from where autograd left it, if it is not staged. staging: [layout.staging_numel];
// undefined if nothing is staged. shard may alias its elements' place in staging, which is then
// left unspecified; with a codec all input gradients are. Transfers without gradients move nothing.
// Without overlap no collective is in flight on return.
UnitReduction reduce_unit(comm::Communicator& comm, const sharding::ShardLayout& layout,
                          const std::vector<at::Tensor>& alone, const at::Tensor& staging,
                          const at::Tensor& shard, residency::BufferPool& pool,
                          const UnitCodec& coded, bool overlap);

// Throws Error(kUnsupported) if the transport under comm lacks what gather and reduce need.
void require_transfers(const comm::Communicator& comm, at::ScalarType gathered,
                       at::ScalarType reduced);

}  // namespace coupler::strategy
