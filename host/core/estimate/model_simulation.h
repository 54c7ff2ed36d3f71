// ModelSimulation: the memory that one simulated rank keeps for one model and takes temporarily,
// step by step through the log. It mirrors strategy/data_parallel, strategy/sharded_model,
// strategy/shard_unit, communication.gradients and offload/offloaded_memory; comments name the
// source. One thread.
#pragma once

#include <memory>
#include <vector>

#include "estimate/ledger.h"
#include "estimate/plan.h"
#include "estimate/residency_model.h"
#include "estimate/step_log.h"
#include "sharding/shard_layout.h"

namespace coupler::estimate {

class ModelSimulation {
 public:
  ModelSimulation(MemoryLedger& ledger, const StepLog& log, const LoggedModel& model,
                  const EstimatePlan& plan);

  void prepare();
  // All that backward would leave.
  void keep_gradients();
  void make_optimizer_state();
  void use(size_t parameter);
  // Takes the block over if the strategy does; otherwise leaves it taken.
  void take_gradient(size_t parameter, MemoryLedger::Block& block, bool reduced);
  void backward_ended(bool reduced);
  void stepped();
  // This rank's share of an optimizer's temporary tensors.
  double share() const;

 private:
  struct Unit {
    const EstimateUnit* plan = nullptr;
    int keep = 0;
    sharding::ShardLayout layout;
    size_t resident = kNone;                                  // in residency_
    size_t parameters_block = kNone, gradient_block = kNone;  // on the disk
    std::vector<size_t> state_blocks;                         // likewise
    std::vector<bool> taken;                                  // by part: its gradient has arrived
    std::vector<MemoryLedger::Block> alone;  // gradients that are sent individually
    MemoryLedger::Block staging, room;
    std::vector<MemoryLedger::Block> packed;
    size_t waiting = 0;
  };
  static constexpr size_t kNone = ~size_t{0};

  // Takes a block that is never given back.
  void keep(MemoryCategory part, uint64_t bytes) { ledger_.take(part, bytes); }
  void divide(size_t parameter, MemoryLedger::Block& whole);
  void make_flat(const std::vector<size_t>& parameters, bool gradients);
  void keep_compression(const std::vector<size_t>& slots, uint64_t bytes);
  void keep_squares(uint64_t bytes);
  void make_disks();
  void give_shards();
  void take_values(std::vector<MemoryLedger::Block>& before);
  void fill(size_t resident, bool aside);
  void gather_packed(const Unit& unit, uint64_t element, bool aside);
  void begin_backward();
  void take_staging(Unit& unit);
  void launch_ready();
  void launch(Unit& unit);
  void finish(Unit& unit);
  bool encodes(const Unit& unit) const;
  bool trains(size_t parameter) const { return model_.parameters[parameter].trainable; }

  MemoryLedger& ledger_;
  const StepLog& log_;
  const LoggedModel& model_;
  const EstimatePlan& plan_;
  std::vector<MemoryLedger::Block> replicated_gradients_;
  std::vector<uint64_t> flat_bytes_;         // of memory that an optimizer has state for
  std::vector<std::vector<size_t>> pieces_;  // of an unsharded model's optimizer state, on the disk
  PoolModel pool_, disk_pool_, parameter_disk_pool_;
  // Whether all parameters are before the strategy gets them, although they may have been made
  // without memory.
  bool in_memory_ = false;
  std::unique_ptr<ResidencyModel> residency_, optimizer_disk_, parameter_disk_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_, part_of_;  // by parameter; kNone: in no unit
  std::vector<size_t> unit_at_;            // by number in residency_
  std::vector<size_t> launch_order_, completion_order_;
  size_t next_launch_ = 0;
  Unit* under_way_ = nullptr;
  bool in_backward_ = false, order_learned_ = false;
};

}  // namespace coupler::estimate
