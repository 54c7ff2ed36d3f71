#include "estimate/model_simulation.h"

#include <coupler/sharding.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "sharding/flat_layout.h"

namespace coupler::estimate {
namespace {

using Block = MemoryLedger::Block;

// strategy/gradient_reducer.cc; with training.bucket_cap_mb, factors are a little smaller or
// larger.
constexpr uint64_t kBucketBytes = uint64_t{25} << 20;
constexpr uint64_t kTrimBytes = uint64_t{16} << 20;  // strategy/sharded_model_make.cc
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;  // empty_weights/replay.h

uint64_t bytes_of(int64_t elements, uint64_t element) {
  return static_cast<uint64_t>(elements) * element;
}
uint64_t aligned_bytes(int64_t elements, uint64_t element) {
  return bytes_of(sharding::aligned_elements(elements), element);
}
uint64_t disk_block(uint64_t bytes) { return (std::max<uint64_t>(bytes, 1) + 4095) / 4096 * 4096; }

sharding::ShardLayout layout_for(const EstimateUnit& unit, const LoggedModel& model,
                                 const EstimatePlan& plan) {
  std::vector<sharding::ShardParameter> parameters;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const LoggedParameter& parameter = model.parameters[unit.parameters[i]];
    parameters.push_back({.index = unit.parameters[i],
                          .bounds = &unit.bounds[i],
                          .numel = static_cast<int64_t>(parameter.numel()),
                          .trains = parameter.trainable});
  }
  return sharding::ShardLayout(parameters, unit.whole_gradients, plan.group_rank, plan.group_size);
}

bool carries_error(const config::CommunicationConfig& communication) {
  if (communication.gradients == "int8") return true;
  return communication.gradients == "powersgd" && communication.powersgd_error_feedback;
}

// The elements of the factors of a matrix that PowerSGD compresses; 0 for one that it does not
// (strategy/power_sgd.cc: rank_for).
uint64_t factor_elements(const config::CommunicationConfig& communication, uint64_t rows,
                         uint64_t columns) {
  const uint64_t rank =
      std::min({static_cast<uint64_t>(communication.powersgd_rank), rows, columns});
  const uint64_t elements = (rows + columns) * rank;
  const bool gains = static_cast<double>(elements) * communication.powersgd_min_compression_rate <
                     static_cast<double>(rows * columns);
  return gains ? elements : 0;
}

// The bytes of elements that PowerSGD sends, and of their copies in 16 bits.
uint64_t sent_bytes(const config::CommunicationConfig& communication, uint64_t elements) {
  return elements * (communication.powersgd_dtype == "fp32" ? 4 : 6);
}

// The encoded size of `elements` elements (strategy/bucket_reduction.cc); 0 without a codec.
uint64_t code_bytes(const config::CommunicationConfig& communication, uint64_t elements) {
  const std::string& name = communication.gradients;
  if (name == "bf16" || name == "fp16") return 2 * elements;
  if (name != "int8") return 0;
  const auto block = static_cast<uint64_t>(communication.int8_block);
  return elements + (elements + block - 1) / block * 4;
}

// What the other ranks send for this rank's part.
uint64_t others_share(uint64_t code, int ranks) {
  return code / static_cast<uint64_t>(ranks) * static_cast<uint64_t>(ranks - 1);
}

}  // namespace

ModelSimulation::ModelSimulation(MemoryLedger& ledger, const StepLog& log, const LoggedModel& model,
                                 const EstimatePlan& plan)
    : ledger_(ledger),
      log_(log),
      model_(model),
      plan_(plan),
      pool_(ledger, plan.optimizer_buffers >= 0 || plan.parameter_buffers >= 0),
      disk_pool_(ledger, true),
      parameter_disk_pool_(ledger, true),
      in_memory_(!plan.sharded() || model.divided()),
      unit_of_(model.parameters.size(), kNone),
      part_of_(model.parameters.size(), kNone) {
  for (const EstimateUnit& unit : plan.units) {
    Unit& made = units_.emplace_back(Unit{.plan = &unit, .layout = layout_for(unit, model, plan)});
    made.keep = made.layout.keep(unit.keep, unit.converts, plan.parameter_buffers >= 0);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      unit_of_[unit.parameters[i]] = units_.size() - 1;
      part_of_[unit.parameters[i]] = i;
    }
    made.taken.resize(unit.parameters.size());
    made.alone.resize(unit.parameters.size());
    const uint64_t bytes = bytes_of(made.layout.numel, unit.compute_element);
    if (made.keep != DB_KEEP_ALWAYS && bytes > ledger.result().largest_unit) {
      ledger.result().largest_unit = bytes;
      ledger.result().largest_unit_name = unit.name;
    }
  }
  std::vector<const sharding::ShardLayout*> layouts;
  for (const Unit& unit : units_) layouts.push_back(&unit.layout);
  launch_order_ = sharding::first_reduce_order(layouts);
}

// strategy/flat_parameters.cc
void ModelSimulation::make_flat(const std::vector<size_t>& parameters, bool gradients) {
  std::vector<size_t> trained;
  std::vector<sharding::FlatParameter> sizes;
  for (const size_t p : parameters) {
    if (!trains(p)) continue;
    const LoggedParameter& parameter = model_.parameters[p];
    trained.push_back(p);
    sizes.push_back({.dtype = parameter.dtype,
                     .element_size = static_cast<int64_t>(parameter.element_size),
                     .numel = static_cast<int64_t>(parameter.numel())});
  }
  const int64_t most = plan_.sub_group > 0 ? plan_.sub_group : std::numeric_limits<int64_t>::max();
  for (sharding::FlatLayout& group : sharding::lay_out_flat(sizes, most)) {
    for (size_t& parameter : group.parameters) parameter = trained[parameter];
    const LoggedParameter& first = model_.parameters[group.parameters.front()];
    const uint64_t bytes = bytes_of(group.numel, first.element_size);
    keep(MemoryCategory::kParameters, bytes);
    if (gradients) {
      keep(MemoryCategory::kGradients, bytes + bytes_of(group.flags, first.element_size));
    }
    flat_bytes_.push_back(bytes);
    if (plan_.sharded() || plan_.world_size == 1) continue;
    if (gradients && first.dtype == DB_F32) keep_compression(group.parameters, bytes);
    // strategy/local_sgd.cc: the last average and the velocity
    if (plan_.communication.local_sgd_momentum != 0 && !gradients) {
      for (int i = 0; i < 2; ++i) keep(MemoryCategory::kBuffers, bytes);
    }
  }
}

// strategy/gradient_compression.cc, for one group of unsharded gradients in fp32: what is carried
// from step to step, and the memory of its reductions, which its buckets share.
void ModelSimulation::keep_compression(const std::vector<size_t>& slots, uint64_t bytes) {
  const config::CommunicationConfig& communication = plan_.communication;
  if (carries_error(communication)) keep(MemoryCategory::kBuffers, bytes);
  if (const uint64_t code = code_bytes(communication, bytes / 4); code > 0) {
    // strategy/compressed_collectives.cc: sums_, sent_, received_
    keep(MemoryCategory::kBuffers, code);
    keep(MemoryCategory::kBuffers, code);
    keep(MemoryCategory::kBuffers, others_share(code, plan_.world_size));
  }
  if (communication.gradients == "batched_powersgd") keep_squares(bytes);
  if (communication.gradients != "powersgd") return;
  uint64_t narrow = 0, travels = 0;
  for (const size_t p : slots) {
    const LoggedParameter& parameter = model_.parameters[p];
    if (parameter.sizes.size() < 2 || parameter.numel() == 0) continue;
    const uint64_t rows = parameter.sizes[0], columns = parameter.numel() / rows;
    const uint64_t factors = factor_elements(communication, rows, columns);
    if (factors == 0) continue;
    keep(MemoryCategory::kBuffers, factors / (rows + columns) * columns * 4);  // what is carried
    narrow += parameter.numel();
    travels += factors;
  }
  if (narrow > 0) {
    keep(MemoryCategory::kBuffers, sent_bytes(communication, travels + bytes / 4 - narrow));
  }
}

// strategy/power_sgd.cc, batched: for each bucket a square with its gradients, another one that is
// carried, and the factors.
void ModelSimulation::keep_squares(uint64_t bytes) {
  const config::CommunicationConfig& communication = plan_.communication;
  for (uint64_t left = bytes; left > 0;) {
    const uint64_t bucket = std::min(left, kBucketBytes);
    left -= bucket;
    const uint64_t elements = bucket / 4;
    const auto side = static_cast<uint64_t>(std::ceil(std::sqrt(static_cast<double>(elements))));
    const uint64_t factors = factor_elements(communication, side, side);
    if (factors == 0) continue;
    keep(MemoryCategory::kBuffers, side * side * 4);
    if (communication.powersgd_error_feedback) keep(MemoryCategory::kBuffers, side * side * 4);
    keep(MemoryCategory::kBuffers, factors / 2 * 4 + sent_bytes(communication, factors));
  }
}

void ModelSimulation::prepare() {
  // As the program made them, or as they are materialized: one by one.
  std::vector<Block> before(model_.parameters.size());
  const auto take_whole = [&](bool in_memory) {
    for (size_t p = 0; p < before.size(); ++p) {
      const LoggedParameter& parameter = model_.parameters[p];
      if (parameter.in_memory != in_memory) continue;
      const uint64_t whole = parameter.whole_bytes();
      before[p] = ledger_.take(MemoryCategory::kParameters,
                               parameter.in_chunks ? std::min(whole, kChunkBytes) : whole);
      if (!in_memory) divide(p, before[p]);
    }
  };
  take_whole(/*in_memory=*/true);
  if (in_memory_) take_whole(/*in_memory=*/false);
  for (size_t p = 0; p < before.size(); ++p) {
    if (model_.parameters[p].in_memory) divide(p, before[p]);
  }
  make_disks();
  if (plan_.sharded()) {
    give_shards();
    take_values(before);
  } else {
    std::vector<size_t> all(before.size());
    std::iota(all.begin(), all.end(), size_t{0});
    make_flat(all, plan_.reduces());
    for (size_t p = 0; p < before.size(); ++p) {
      if (trains(p)) ledger_.give_back(before[p]);
    }
  }
}

// tensor_parallel/divide.cc: a copy of the part takes the place of the whole, or of its last chunk.
void ModelSimulation::divide(size_t parameter, Block& whole) {
  if (!model_.parameters[parameter].divided()) return;
  const Block part =
      ledger_.take(MemoryCategory::kParameters, model_.parameters[parameter].bytes());
  ledger_.give_back(whole);
  whole = part;
}

// residency/offloaded_memory.cc
void ModelSimulation::make_disks() {
  const auto disk = [&](int buffers, PoolModel& pool) {
    ResidencyModel::Options options{
        .policy = {.prefetch = buffers, .live_bytes = 0, .shared = false},
        .max_queued_writes = static_cast<size_t>(std::max(buffers, 1)),
        .part = MemoryCategory::kBuffers};
    return buffers < 0 ? nullptr : std::make_unique<ResidencyModel>(pool, options, nullptr);
  };
  optimizer_disk_ = disk(plan_.optimizer_buffers, disk_pool_);
  parameter_disk_ = disk(plan_.parameter_buffers, parameter_disk_pool_);
}

// ShardedModel::give_memory and make_managed_parameters
void ModelSimulation::give_shards() {
  uint64_t element = 4;
  std::map<uint64_t, uint64_t> totals;
  for (const Unit& unit : units_) {
    if (unit.keep == DB_KEEP_ALWAYS) continue;
    element = std::max(element, unit.plan->compute_element);
    totals[unit.plan->element] += aligned_bytes(unit.layout.shard_numel, unit.plan->element);
  }
  const bool converts = std::any_of(units_.begin(), units_.end(), [](const Unit& unit) {
    return unit.plan->compute_element != unit.plan->element;
  });
  const MemoryCategory values = converts ? MemoryCategory::kMaster : MemoryCategory::kParameters;
  for (const auto& [size, bytes] : totals) {
    if (parameter_disk_ == nullptr) keep(values, bytes);
    if (optimizer_disk_ == nullptr) keep(MemoryCategory::kGradients, bytes);
  }
  residency_ = std::make_unique<ResidencyModel>(
      pool_,
      ResidencyModel::Options{
          .policy = {.prefetch = plan_.prefetch, .live_bytes = plan_.live_elements * element}},
      [this](size_t resident, bool ahead) { fill(resident, ahead); });
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    const EstimateUnit& plan = *unit.plan;
    if (plan.whole_gradients) {
      keep(MemoryCategory::kGradients, bytes_of(unit.layout.staging_numel, plan.reduce_element));
    }
    // ShardUnit::encode_gradients
    for (const sharding::ShardTransfer& transfer : unit.layout.transfers) {
      if (transfer.trains && encodes(unit) && carries_error(plan_.communication))
        keep(MemoryCategory::kBuffers, bytes_of(transfer.numel, plan.reduce_element));
    }
    const uint64_t shard = aligned_bytes(unit.layout.shard_numel, plan.element);
    if (unit.keep == DB_KEEP_ALWAYS) {
      keep(MemoryCategory::kParameters, bytes_of(unit.layout.numel, plan.element));
      if (!plan.whole_gradients || plan.reduces_converted) keep(MemoryCategory::kGradients, shard);
    } else {
      if (parameter_disk_ != nullptr) {
        unit.parameters_block = parameter_disk_->add(disk_block(shard), false);
      }
      if (optimizer_disk_ != nullptr) {
        unit.gradient_block = optimizer_disk_->add(disk_block(shard), false);
      }
      unit.resident = residency_->add(bytes_of(unit.layout.numel, plan.compute_element),
                                      unit.keep == DB_KEEP_STEP);
      unit_at_.push_back(i);
    }
  }
}

// ShardedModel::take_values, then add_variables
void ModelSimulation::take_values(std::vector<Block>& before) {
  uint64_t passed = 0;
  for (size_t p = 0; p < before.size(); ++p) {
    const LoggedParameter& parameter = model_.parameters[p];
    Block whole;
    const bool materialized = before[p].taken;
    if (!materialized) whole = ledger_.take(MemoryCategory::kParameters, parameter.bytes());
    if (unit_of_[p] == kNone) {
      if (!materialized) before[p] = std::exchange(whole, {});
    } else if (const size_t block = units_[unit_of_[p]].parameters_block; block != kNone) {
      parameter_disk_->use(block);
      parameter_disk_->write(block);
    }
    ledger_.give_back(whole);
    passed += parameter.bytes();
    if (passed > kTrimBytes) {
      ledger_.trim();
      passed = 0;
    }
  }
  for (size_t p = 0; p < before.size(); ++p) {
    if (unit_of_[p] != kNone) ledger_.give_back(before[p]);
  }
  make_flat(plan_.replicated, true);
  for (const size_t p : plan_.replicated) {
    if (trains(p)) ledger_.give_back(before[p]);
  }
  ledger_.trim();
}

void ModelSimulation::keep_gradients() {
  for (const LoggedParameter& parameter : model_.parameters) {
    if (parameter.trainable) keep(MemoryCategory::kGradients, parameter.bytes());
  }
}

// optim/fused_kernel.cc, zeros_for
void ModelSimulation::make_optimizer_state() {
  const auto state = [&](uint64_t bytes) {
    const double all = log_.optimizer_factor * static_cast<double>(bytes);
    const auto tensors = static_cast<uint64_t>(std::max(1.0, std::round(log_.optimizer_factor)));
    for (uint64_t i = 0; i < tensors && all > 0; ++i) {
      keep(MemoryCategory::kOptimizer, static_cast<uint64_t>(all / static_cast<double>(tensors)));
    }
  };
  const auto on_disk = [&](uint64_t bytes) {
    std::vector<size_t> blocks(static_cast<size_t>(std::round(log_.optimizer_factor)));
    for (size_t& block : blocks) block = optimizer_disk_->add(disk_block(bytes), false);
    return blocks;
  };
  for (const uint64_t bytes : flat_bytes_) {
    if (plan_.sub_group > 0) {
      pieces_.push_back(on_disk(bytes));
    } else {
      state(bytes);
    }
  }
  for (Unit& unit : units_) {
    if (!unit.layout.trains()) continue;
    const uint64_t bytes = aligned_bytes(unit.layout.shard_numel, unit.plan->element);
    if (optimizer_disk_ == nullptr || unit.keep == DB_KEEP_ALWAYS) {
      state(bytes);
      continue;
    }
    unit.state_blocks = on_disk(bytes);
  }
}

// Whether its gradients are sent encoded.
bool ModelSimulation::encodes(const Unit& unit) const {
  return plan_.group_size > 1 && unit.plan->reduce_element == 4 &&
         code_bytes(plan_.communication, 1) > 0;
}

double ModelSimulation::share() const {
  if (!plan_.sharded()) return 1;
  double own = 0, all = 0;
  for (const Unit& unit : units_) {
    own += static_cast<double>(unit.layout.shard_numel);
    all += static_cast<double>(unit.layout.numel);
  }
  return all > 0 ? own / all : 1;
}

// strategy/shard_unit.cc
void ModelSimulation::fill(size_t resident, bool aside) {
  const Unit& unit = units_[unit_at_[resident]];
  if (unit.parameters_block != kNone) {
    parameter_disk_->use(unit.parameters_block);
    parameter_disk_->pin(unit.parameters_block);
  }
  Block room;
  if (unit.plan->compute_element != unit.plan->element && unit.layout.shard_numel > 0) {
    room = pool_.take(MemoryCategory::kBuffers,
                      bytes_of(unit.layout.shard_numel, unit.plan->compute_element), aside);
  }
  gather_packed(unit, unit.plan->compute_element, aside);
  pool_.give_back(room);
  if (unit.parameters_block != kNone) parameter_disk_->unpin(unit.parameters_block);
}

// strategy/shard_transfer.cc, gather_unit
void ModelSimulation::gather_packed(const Unit& unit, uint64_t element, bool aside) {
  for (const sharding::ShardTransfer& transfer : unit.layout.transfers) {
    if (!transfer.packed()) continue;
    Block packed = pool_.take(MemoryCategory::kBuffers, bytes_of(transfer.numel, element), aside);
    pool_.give_back(packed);
  }
}

void ModelSimulation::use(size_t parameter) {
  const size_t unit = unit_of_[parameter];
  if (unit != kNone && units_[unit].resident != kNone) residency_->use(units_[unit].resident);
}

void ModelSimulation::begin_backward() {
  in_backward_ = true;
  next_launch_ = 0;
  completion_order_.clear();
  for (Unit& unit : units_) {
    unit.waiting = 0;
    for (size_t i = 0; i < unit.taken.size(); ++i) {
      unit.taken[i] = false;
      unit.waiting += trains(unit.plan->parameters[i]) ? 1 : 0;
    }
  }
}

void ModelSimulation::take_gradient(size_t parameter, Block& block, bool reduced) {
  if (!plan_.reduces() || !reduced) return ledger_.move(block, MemoryCategory::kGradients);
  if (!plan_.sharded()) return ledger_.give_back(block);  // copied into flat memory
  if (!in_backward_) begin_backward();
  if (unit_of_[parameter] == kNone) {
    ledger_.move(block, MemoryCategory::kGradients);
    replicated_gradients_.push_back(std::exchange(block, {}));
    return;
  }
  Unit& unit = units_[unit_of_[parameter]];
  const size_t part = part_of_[parameter];
  if (unit.layout.parts[part].staging_offset < 0) {
    ledger_.move(block, MemoryCategory::kBuffers);
    if (unit.plan->reduces_converted) {
      unit.alone[part] =
          ledger_.take(MemoryCategory::kBuffers,
                       bytes_of(unit.layout.parts[part].numel, unit.plan->reduce_element));
      ledger_.give_back(block);
    } else {
      unit.alone[part] = std::exchange(block, {});
    }
  } else {
    take_staging(unit);
    ledger_.give_back(block);
  }
  unit.taken[part] = true;
  if (--unit.waiting == 0) completion_order_.push_back(unit_of_[parameter]);
  launch_ready();
}

void ModelSimulation::take_staging(Unit& unit) {
  const sharding::ShardLayout& layout = unit.layout;
  if (unit.staging.taken || unit.plan->whole_gradients || layout.staging_numel == 0) return;
  unit.staging = pool_.take(MemoryCategory::kBuffers,
                            bytes_of(layout.staging_numel, unit.plan->reduce_element));
}

void ModelSimulation::launch_ready() {
  while (next_launch_ < launch_order_.size() && units_[launch_order_[next_launch_]].waiting == 0) {
    launch(units_[launch_order_[next_launch_++]]);
  }
}

// ShardUnit::begin_reduction
void ModelSimulation::launch(Unit& unit) {
  if (unit.resident != kNone) residency_->release(unit.resident);
  if (Unit* const before = std::exchange(under_way_, &unit)) finish(*before);
  if (unit.plan->reduces_converted || unit.gradient_block != kNone) {
    unit.room = pool_.take(MemoryCategory::kBuffers,
                           bytes_of(unit.layout.shard_numel, unit.plan->reduce_element));
  }
  for (const sharding::ShardTransfer& transfer : unit.layout.transfers) {
    if (!transfer.trains) continue;
    const auto numel = static_cast<uint64_t>(transfer.numel);
    if (transfer.packed()) {
      unit.packed.push_back(
          pool_.take(MemoryCategory::kBuffers, numel * unit.plan->reduce_element));
    }
    if (!encodes(unit)) continue;
    // strategy/compressed_collectives.cc: sent_, received_
    const uint64_t code = code_bytes(plan_.communication, numel);
    unit.packed.push_back(pool_.take(MemoryCategory::kBuffers, code));
    unit.packed.push_back(
        pool_.take(MemoryCategory::kBuffers, others_share(code, plan_.group_size)));
  }
  if (!plan_.overlap) finish(*std::exchange(under_way_, nullptr));
}

// ShardUnit::finish_reduction
void ModelSimulation::finish(Unit& unit) {
  for (Block& packed : unit.packed) pool_.give_back(packed);
  unit.packed.clear();
  if (unit.gradient_block != kNone) {
    optimizer_disk_->use_for_overwrite(unit.gradient_block);
    optimizer_disk_->write(unit.gradient_block);
  }
  if (unit.plan->reduces_converted) {
    for (const sharding::ShardPart& part : unit.layout.parts) {
      Block converted = ledger_.take(MemoryCategory::kBuffers,
                                     bytes_of(part.end - part.begin, unit.plan->element));
      ledger_.give_back(converted);
    }
  }
  pool_.give_back(unit.room);
  pool_.give_back(unit.staging);
  for (Block& alone : unit.alone) ledger_.give_back(alone);
}

// ShardedModel::finish
void ModelSimulation::backward_ended(bool reduced) {
  if (!plan_.sharded()) return;
  if (reduced) {
    if (!in_backward_) begin_backward();
    while (next_launch_ < launch_order_.size()) {
      Unit& unit = units_[launch_order_[next_launch_++]];
      take_staging(unit);
      launch(unit);
    }
    if (Unit* const last = std::exchange(under_way_, nullptr)) finish(*last);
    for (Block& gradient : replicated_gradients_) ledger_.give_back(gradient);
    replicated_gradients_.clear();
    in_backward_ = false;
    if (!std::exchange(order_learned_, true)) {
      launch_order_ = sharding::learned_reduce_order(completion_order_, launch_order_);
    }
  }
  residency_->end_of_pass();
}

// FusedKernel::step, unit by unit if state is on a disk; ShardedModel::parameters_changed
void ModelSimulation::stepped() {
  for (const std::vector<size_t>& blocks : pieces_) {
    for (const size_t block : blocks) {
      optimizer_disk_->use(block);
      optimizer_disk_->pin(block);
      optimizer_disk_->write(block);
    }
    for (const size_t block : blocks) optimizer_disk_->unpin(block);
  }
  if (!plan_.sharded()) return;
  for (Unit& unit : units_) {
    std::vector<size_t> blocks = unit.state_blocks;
    if (unit.gradient_block != kNone) blocks.insert(blocks.begin(), unit.gradient_block);
    if (unit.parameters_block != kNone) {
      parameter_disk_->use(unit.parameters_block);
      parameter_disk_->pin(unit.parameters_block);
      parameter_disk_->write(unit.parameters_block);
    }
    for (const size_t block : blocks) {
      optimizer_disk_->use(block);
      optimizer_disk_->pin(block);
      if (block != unit.gradient_block) optimizer_disk_->write(block);
    }
    for (const size_t block : blocks) optimizer_disk_->unpin(block);
    if (unit.parameters_block != kNone) parameter_disk_->unpin(unit.parameters_block);
  }
  residency_->release_all();
  for (const Unit& unit : units_) {
    if (unit.resident == kNone) gather_packed(unit, unit.plan->element, /*aside=*/false);
  }
}

}  // namespace coupler::estimate
