// ShardUnit: one unit of a sharded model on this rank: its part of the parameters (master) and of
// the gradients, and the path of gradients from autograd to there. Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "residency/unit.h"
#include "sharding/shard_layout.h"
#include "strategy/flat_parameters.h"
#include "strategy/plan.h"
#include "strategy/shard_transfer.h"

namespace coupler::strategy {

// rank and ranks: of the group that shares the unit.
sharding::ShardLayout layout_of(const PlannedUnit& unit, const Model& model, int rank, int ranks);

// The communicators of one sharded model.
struct ShardComms {
  std::shared_ptr<comm::Communicator> world;   // of all ranks: flags, norms, what is replicated
  std::shared_ptr<comm::Communicator> group;   // of the ranks that share one copy: gradients
  std::shared_ptr<comm::Communicator> gather;  // of the same ranks: parameters
  std::shared_ptr<comm::Communicator>
      copies;  // of the ranks that hold the same part; null: one copy
};

// One parameter of the unit.
struct ShardMember {
  std::string name;
  at::Tensor parameter;  // the user's variable
  sharding::ShardPart part;
  at::Tensor own;       // this rank's part as an optimizer's variable; undefined: none, or frozen
  at::Tensor gradient;  // of own, part of ShardUnit::gradient
  at::Tensor alone;     // its gradient, if it is not staged
  bool taken = false;   // whether its gradient of this backward was taken
  bool used = false;    // whether that was used during backward
};

class ShardUnit {
 public:
  ShardUnit(const PlannedUnit& plan, const Model& model, int rank, int ranks);

  // Copies this rank's part out of a parameter's whole value.
  void take_value(size_t member, const at::Tensor& value);
  // Encodes later kFloat gradients between ranks. A codec with feedback takes as much memory as all
  // gradients of the unit.
  void encode_gradients(const std::shared_ptr<const GradientCodec>& codec);
  // Makes the optimizer's variables. Call once master and gradient have their memory.
  void make_variables();

  // ---- One backward. ----
  void begin();
  // Takes a parameter's gradient (or zeros, if it has none) for the reduction.
  void take_gradient(size_t member, residency::BufferPool& pool);
  bool complete() const { return waiting_ == 0; }
  // Averages what was taken over all ranks, adds it to gradient and multiplies that by factor. With
  // overlap it returns while the reduction is in flight; finish_reduction() ends it. Collective.
  void begin_reduction(const ShardComms& comms, residency::BufferPool& pool, double factor,
                       const UnitHook& hook, bool overlap);
  void finish_reduction(const ShardComms& comms);
  void abandon();
  bool has_gradient() const;  // from an earlier backward

  size_t number = 0;  // among its model's units
  PlannedUnit plan;
  c10::Device device;  // of all its memory
  sharding::ShardLayout layout;
  std::vector<ShardMember> members;
  at::Tensor whole;           // DB_KEEP_ALWAYS: [layout.numel] of plan.compute_type
  at::Tensor master;          // [layout.shard_numel] of plan.type; may be part of whole
  at::Tensor gradient;        // likewise; may be part of whole_gradient
  at::Tensor whole_gradient;  // DB_GRADIENTS_WHOLE: [layout.staging_numel] of plan.reduce_type
  UnitCodec coded;            // how gradients are encoded
  residency::Unit* resident = nullptr;  // null for DB_KEEP_ALWAYS
  size_t first_slot = 0, end_slot = 0;  // slots in its model's flat() of members with `own`
  bool complete_here = false;           // whether this rank produced all gradients of this backward

 private:
  void need_staging(residency::BufferPool& pool);
  void clear_padding();
  void add_to_gradient(const ShardMember& member, const at::Tensor& values, double scale);

  at::Tensor staging_;                          // undefined: nothing is staged yet
  residency::BufferPool::Buffer staging_room_;  // its memory, if that is not whole_gradient
  at::Tensor kept_;     // the gradient of earlier backwards, if staging would overwrite it
  at::Tensor reduced_;  // destination of the current reduction
  residency::BufferPool::Buffer room_;  // its memory, if that is not gradient
  double factor_ = 1;                   // of the current reduction
  double after_ = 1;                    // what its result is multiplied by in addition
  UnitReduction reduction_;             // last: its destructor waits before the memory is freed
  size_t waiting_ = 0;                  // trainable members whose gradient has not been taken
};

// PeerSource: fills the units of a sharded model from the ranks that own them. All ranks of the
// group fill the same unit at the same time: rank 0 of the group chooses it (a small broadcast
// before each gather), so that ranks that use units in different orders, or from several threads,
// agree. A rank whose peers never join gets an Error naming the unit.
class PeerSource : public residency::Source {
 public:
  // units and pool must outlive the source; units[i] is Unit number i of the Residency.
  PeerSource(std::vector<ShardUnit*>& units, std::shared_ptr<comm::Communicator> comm,
             residency::BufferPool& pool)
      : units_(units), comm_(std::move(comm)), pool_(pool) {}

  size_t agree(size_t wanted) override;
  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;

 private:
  [[noreturn]] void explain(size_t unit, const std::exception& cause) const;

  std::vector<ShardUnit*>& units_;
  std::shared_ptr<comm::Communicator> comm_;
  residency::BufferPool& pool_;
};

}  // namespace coupler::strategy
