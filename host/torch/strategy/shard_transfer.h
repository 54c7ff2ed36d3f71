// Moves units between the ranks of a group: gathers whole units from shards, and reduces gradients
// into shards. Pure functions; collective on comm, whose thread rules apply. All memory is on the
// pool's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "sharding/shard_layout.h"
#include "strategy/bucket_reduction.h"
#include "strategy/comm_hook.h"
#include "strategy/compressed_collectives.h"
#include "strategy/gradient_work.h"

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

// What reduces a unit's gradients instead, each transfer as a bucket; a null hook: nothing.
struct UnitHook {
  std::shared_ptr<const NamedHook> hook;
  std::string model;               // its type
  std::vector<std::string> names;  // by part of the layout
  size_t first_bucket = 0;         // index of its first bucket
  bool last = false;               // whether no bucket follows those of this unit
  std::vector<std::shared_ptr<comm::Communicator>> related = {};  // see BucketContent
};

// A reduction in flight; its memory must stay valid until wait() has returned.
class UnitReduction {
 public:
  void wait();

 private:
  friend UnitReduction reduce_unit(const std::shared_ptr<comm::Communicator>&,
                                   const sharding::ShardLayout&, const std::vector<at::Tensor>&,
                                   const at::Tensor&, const at::Tensor&, residency::BufferPool&,
                                   const UnitCodec&, const UnitHook&, bool);
  std::vector<residency::BufferPool::Buffer> packed_;  // before works_, which read it
  std::vector<std::unique_ptr<GradientWork>> works_;
};

// Sums a unit's gradients over ranks; each rank keeps its shard. alone: for each transfer, the
// gradient sent from where autograd left it, if it is not staged. staging: [layout.staging_numel];
// undefined if nothing is staged. shard may alias its elements' place in staging, which is then
// left unspecified; with a codec all input gradients are. Transfers without gradients move nothing.
// Without overlap and hook no collective is in flight on return. A hook's values replace the sums;
// coded must outlive the reduction.
UnitReduction reduce_unit(const std::shared_ptr<comm::Communicator>& comm,
                          const sharding::ShardLayout& layout, const std::vector<at::Tensor>& alone,
                          const at::Tensor& staging, const at::Tensor& shard,
                          residency::BufferPool& pool, const UnitCodec& coded, const UnitHook& hook,
                          bool overlap);
// The number of transfers that carry gradients, each a bucket for a hook.
size_t count_buckets(const sharding::ShardLayout& layout);

// Throws Error(kUnsupported) if the transport under comm lacks what gather and reduce need.
void require_transfers(const comm::Communicator& comm, at::ScalarType gathered,
                       at::ScalarType reduced);

}  // namespace coupler::strategy
