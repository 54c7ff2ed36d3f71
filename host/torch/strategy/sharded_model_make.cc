// Construction of a ShardedModel: communicators, plan, memory, values, variables, hooks.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "empty_weights/empty_weights.h"
#include "residency/intercept.h"
#include "residency/peer_memory.h"
#include "strategy/gradient_compression.h"
#include "strategy/shard_transfer.h"
#include "strategy/shard_unit.h"
#include "strategy/sharded_model.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

// After this many bytes of a model's values, free memory is returned to the system.
constexpr int64_t kTrimBytes = 16 << 20;

// This rank's elements in a whole unit's memory.
at::Tensor own_range(const ShardUnit& unit, const at::Tensor& whole) {
  const sharding::ShardRun& run = unit.layout.transfers[0].runs[0];
  const auto rank = static_cast<size_t>(unit.layout.rank);
  return whole.narrow(0, run.bounds[rank], run.bounds[rank + 1] - run.bounds[rank]);
}

// A shard together with the padding after it, unless that belongs to another rank.
at::Tensor with_padding(const ShardUnit& unit, const at::Tensor& shard) {
  int64_t numel = sharding::aligned_elements(shard.numel());
  if (unit.whole.defined()) {
    const sharding::ShardRun& run = unit.layout.transfers[0].runs[0];
    const auto rank = static_cast<size_t>(unit.layout.rank);
    if (run.bounds[rank + 1] != run.bounds.back()) numel = shard.numel();
    numel = std::min(numel, unit.layout.numel - run.bounds[rank]);
  }
  return place_in(shard, 0, {numel});
}

ModelTypes planned_types(const ShardPlan& plan, const Model& model) {
  ModelTypes result;
  for (const PlannedUnit& unit : plan.units) {
    result.stored.insert(unit.type);
    result.computed.insert(unit.compute_type);
    result.reduced.insert(unit.reduce_type);
  }
  for (const size_t index : plan.replicated) {
    const at::ScalarType type = model.parameters[index].tensor.scalar_type();
    for (auto* types : {&result.stored, &result.computed, &result.reduced}) types->insert(type);
  }
  return result;
}

}  // namespace

std::shared_ptr<ShardedModel> ShardedModel::make(Model model, ShardPlan plan,
                                                 std::shared_ptr<comm::Communicator> comm,
                                                 const config::TrainingConfig& config,
                                                 const config::CommunicationConfig& communication) {
  std::shared_ptr<ShardedModel> result(
      new ShardedModel(std::move(model), std::move(plan), std::move(comm), config));
  result->encode_gradients(communication);
  result->install_hooks();
  return result;
}

void ShardedModel::encode_gradients(const config::CommunicationConfig& communication) {
  const auto codec = make_codec(communication);
  if (codec == nullptr) return;
  require_operation(*comms_.group, "gradients", DB_ALL_TO_ALL_V, at::kByte, model().device);
  bool all = true;
  for (const auto& unit : units_) {
    unit->encode_gradients(codec);
    all = all && unit->plan.reduce_type == at::kFloat;
  }
  if (all || comms_.world->rank() != 0) return;
  log(LogLevel::kWarning, "strategy",
      fmt::format(
          "communication.gradients is {}, which applies only to gradients reduced in fp32; those "
          "of '{}' that the backend reduces in another type stay uncompressed",
          communication.gradients, model().name));
}

ShardedModel::ShardedModel(Model model, ShardPlan plan, std::shared_ptr<comm::Communicator> comm,
                           const config::TrainingConfig& config)
    : Strategy(std::move(model)),
      plan_(std::move(plan)),
      // Offloading means that memory is scarce.
      pool_(this->model().device.is_cpu() && (plan_.offload_parameters || plan_.offload_optimizer)
                ? residency::BufferPool(residency::PoolMemory::kPages)
                : residency::BufferPool(this->model().device)) {
  const at::NoGradGuard no_grad;
  residency::check_intercept();
  comms_.world = std::move(comm);
  make_communicators();
  if (!plan_.offload_parameters && !plan_.offload_optimizer) pool_.use_memory_of(comms_.group);
  make_offloaded_memory();
  places_.resize(this->model().parameters.size());
  std::vector<const sharding::ShardLayout*> layouts;
  for (const PlannedUnit& unit_plan : plan_.units) {
    const bool converts =
        unit_plan.compute_type != unit_plan.type || unit_plan.output_type.has_value();
    ShardUnit& unit = *units_.emplace_back(std::make_unique<ShardUnit>(
        unit_plan, this->model(), comms_.group->rank(), comms_.group->size()));
    unit.number = units_.size() - 1;
    unit.plan.keep = unit.layout.keep(unit.plan.keep, converts, parameter_memory_ != nullptr);
    layouts.push_back(&unit.layout);
    for (size_t i = 0; i < unit.members.size(); ++i) {
      places_[unit.members[i].part.index] = {.unit = &unit, .index = i};
    }
    require_transfers(*comms_.group, unit_plan.compute_type, unit_plan.reduce_type);
  }
  launch_order_ = sharding::first_reduce_order(layouts);
  give_memory();
  take_values();
  if (config.broadcast_buffers) {
    for (const auto& [name, buffer] : this->model().buffers) buffers_.push_back(buffer);
  }
  make_managed_parameters();
  add_variables();
  malloc_trim(0);  // the parameters' former memory, in pieces
  describe({.text = fmt::format("{} units sharded over groups of {} ranks, {} parameters whole on "
                                "every rank",
                                units_.size(), plan_.group_size, plan_.replicated.size()),
            .types = planned_types(plan_, this->model()),
            .parameters_stay = resident_units_.empty()});
}

void ShardedModel::make_communicators() {
  const int rank = comms_.world->rank();
  const bool divided = plan_.group_size < comms_.world->size();
  comms_.group =
      divided ? comms_.world->split(plan_.group, rank, "shard group", "shard") : comms_.world;
  comms_.gather = comms_.group->split(0, comms_.group->rank(), "parameters");
  if (divided) {
    comms_.copies = comms_.world->split(comms_.group->rank(), rank, "copies", plan_.copies_group);
  }
}

void ShardedModel::make_offloaded_memory() {
  const auto make = [this](const std::optional<residency::OffloadPlace>& place) {
    return place ? std::make_unique<residency::OffloadedMemory>(*place, model().device) : nullptr;
  };
  optimizer_memory_ = make(plan_.offload_optimizer);
  parameter_memory_ = make(plan_.offload_parameters);
}

// Shards of units that are not kept whole are stored contiguously, so that one kernel updates them.
// Offloaded memory is separate for each unit.
void ShardedModel::give_memory() {
  using residency::zeros_to_send;
  comm::Communicator *const gather = comms_.gather.get(), *const copies = comms_.copies.get();
  std::map<at::ScalarType, int64_t> totals;
  std::vector<int64_t> begins;
  for (const auto& unit : units_) {
    int64_t& total = totals[unit->plan.type];
    begins.push_back(total);
    total += unit->plan.keep == DB_KEEP_ALWAYS
                 ? 0
                 : sharding::aligned_elements(unit->layout.shard_numel);
  }
  std::map<at::ScalarType, at::Tensor> masters, gradients;
  for (const auto& [type, total] : totals) {
    const auto options = at::TensorOptions(type).device(model().device);
    if (parameter_memory_ == nullptr) masters[type] = zeros_to_send(gather, total, options);
    if (optimizer_memory_ == nullptr) gradients[type] = zeros_to_send(copies, total, options);
  }
  const auto place = [&](residency::OffloadedMemory* offloaded, const char* what,
                         const ShardUnit& unit, const std::map<at::ScalarType, at::Tensor>& memory,
                         int64_t begin) {
    const int64_t numel = unit.layout.shard_numel;
    if (offloaded == nullptr) return place_in(memory.at(unit.plan.type), begin, {numel});
    return place_in(offloaded->make(fmt::format("{} of {}", what, unit.plan.name),
                                    sharding::aligned_elements(numel), unit.plan.type),
                    0, {numel});
  };
  for (size_t i = 0; i < units_.size(); ++i) {
    ShardUnit& unit = *units_[i];
    const auto options = at::TensorOptions(unit.plan.type).device(unit.device);
    if (unit.plan.gradients == DB_GRADIENTS_WHOLE) {
      unit.whole_gradient = zeros_to_send(comms_.group.get(), unit.layout.staging_numel,
                                          options.dtype(unit.plan.reduce_type));
    }
    if (unit.plan.keep == DB_KEEP_ALWAYS) {
      unit.whole = zeros_to_send(gather, unit.layout.numel, options);
      unit.master = own_range(unit, unit.whole);
      const bool same_type = unit.plan.reduce_type == unit.plan.type;
      unit.gradient =
          unit.whole_gradient.defined() && same_type
              ? own_range(unit, unit.whole_gradient)
              : zeros_to_send(copies, sharding::aligned_elements(unit.master.numel()), options)
                    .narrow(0, 0, unit.master.numel());
    } else {
      unit.master = place(parameter_memory_.get(), "parameters", unit, masters, begins[i]);
      unit.gradient = place(optimizer_memory_.get(), "gradients", unit, gradients, begins[i]);
    }
  }
}

// Parameter by parameter, so that the whole model need not be in memory.
void ShardedModel::take_values() {
  std::vector<empty_weights::MetaTensor> on_meta;
  std::vector<size_t> index_on_meta;
  int64_t passed = 0;  // bytes of values already freed
  const auto take = [&](size_t index, at::Tensor value) {
    at::Tensor whole = value.contiguous();
    value.reset();
    comms_.world->run(tensors::broadcast_op(whole, 0));
    passed += static_cast<int64_t>(whole.nbytes());
    const Place place = places_[index];
    if (place.unit == nullptr) {
      const at::Tensor& parameter = model().parameters[index].tensor;
      parameter.is_meta() ? empty_weights::put_value(parameter, whole)
                          : void(parameter.copy_(whole));
      move_to(parameter, model().device);
      return;
    }
    ShardUnit& unit = *place.unit;
    unit.take_value(place.index, whole);
    if (unit.whole.defined()) {
      const sharding::ShardPart& part = unit.members[place.index].part;
      unit.whole.narrow(0, part.offset, part.numel).copy_(whole.view({-1}));
    }
    whole.reset();
    // The heap cannot always reuse one value's memory for the next (an aligned block needs slightly
    // more than was freed), and would grow to hold the whole model.
    if (passed > kTrimBytes) {
      malloc_trim(0);
      passed = 0;
    }
  };
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    const ModelParameter& parameter = model().parameters[i];
    if (parameter.tensor.is_meta()) {
      on_meta.push_back({parameter.name, parameter.tensor});
      index_on_meta.push_back(i);
    } else {
      take(i, parameter.tensor.detach());
    }
  }
  std::vector<at::Tensor> buffers;
  for (const auto& [name, buffer] : model().buffers) {
    if (buffer.is_meta()) {
      on_meta.push_back({name, buffer});
    } else {
      buffers.push_back(buffer);
    }
  }
  empty_weights::materialize(on_meta, [&](size_t i, at::Tensor value) {
    if (i < index_on_meta.size()) {
      take(index_on_meta[i], std::move(value));
      return;
    }
    empty_weights::put_value(on_meta[i].tensor, value);
    buffers.push_back(on_meta[i].tensor);
  });
  for (const at::Tensor& buffer : buffers) move_to(buffer, model().device);
  tensors::broadcast_coalesced(*comms_.world, buffers, 0);
}

void ShardedModel::make_managed_parameters() {
  size_t element = sizeof(float);
  for (const auto& unit : units_) {
    if (unit->plan.keep != DB_KEEP_ALWAYS) {
      element = std::max(element, c10::elementSize(unit->plan.compute_type));
    }
  }
  residency_ = std::make_unique<residency::Residency>(
      std::make_unique<PeerSource>(resident_units_, comms_.gather, pool_), pool_,
      residency::ResidencyOptions{.prefetch = plan_.prefetch,
                                  .live_bytes = plan_.live_elements * element});
  for (const auto& unit : units_) {
    if (unit->plan.keep == DB_KEEP_ALWAYS) {
      for (const ShardMember& member : unit->members) {
        empty_weights::set_value(
            member.parameter, place_in(unit->whole, member.part.offset, member.parameter.sizes()));
      }
      continue;
    }
    auto managed = std::make_unique<residency::Unit>();
    managed->name = unit->plan.name;
    const size_t size = c10::elementSize(unit->plan.compute_type);
    managed->bytes = static_cast<size_t>(unit->layout.numel) * size;
    managed->sticky = unit->plan.keep == DB_KEEP_STEP;
    if (unit->plan.compute_type != unit->plan.type) managed->compute_type = unit->plan.compute_type;
    managed->output_type = unit->plan.output_type;
    for (const ShardMember& member : unit->members) {
      auto managed_storage = std::make_unique<residency::ManagedStorage>();
      managed_storage->name = member.name;
      managed_storage->device = unit->device;
      managed_storage->offset = static_cast<size_t>(member.part.offset) * size;
      const at::Tensor& parameter = member.parameter;
      empty_weights::set_value(
          parameter, make_managed(*managed_storage, parameter.sizes(), unit->plan.compute_type));
      residency::put_intercept(parameter);
      managed->storages.push_back(std::move(managed_storage));
    }
    resident_units_.push_back(unit.get());
    unit->resident = &residency_->add(std::move(managed));
  }
}

// Adds the variables that optimizers update. A group's slots are updated as one piece of memory, so
// a frozen part in between ends a group.
void ShardedModel::add_variables() {
  for (const auto& unit : units_) {
    unit->make_variables();
    unit->first_slot = flat().slots().size();
    std::vector<const ShardMember*> in_shard;  // in the order of its memory
    for (const ShardMember& member : unit->members) {
      if (member.part.begin < member.part.end) in_shard.push_back(&member);
    }
    std::sort(in_shard.begin(), in_shard.end(), [](const ShardMember* a, const ShardMember* b) {
      return a->part.shard_offset < b->part.shard_offset;
    });
    std::vector<FlatSlot> slots;
    // A group's memory ends where a frozen part begins: kernels also update padding after a slot.
    const auto finish_group = [&](const at::Tensor& parameters, const at::Tensor& gradients) {
      if (slots.empty()) return;
      flat().add({.parameters = parameters,
                  .gradients = gradients,
                  .state_memory = optimizer_memory_.get()},
                 std::exchange(slots, {}));
    };
    for (const ShardMember* const member : in_shard) {
      if (!member->own.defined()) {
        const int64_t end = member->part.shard_offset;
        finish_group(place_in(unit->master, 0, {end}), place_in(unit->gradient, 0, {end}));
        continue;
      }
      slots.push_back({.name = member->name,
                       .parameter = member->own,
                       .gradient = member->gradient,
                       .offset = member->part.shard_offset,
                       .numel = member->part.end - member->part.begin});
    }
    finish_group(with_padding(*unit, unit->master), with_padding(*unit, unit->gradient));
    unit->end_slot = flat().slots().size();
  }
  NamedTensors trainable;
  for (const size_t index : plan_.replicated) {
    const ModelParameter& parameter = model().parameters[index];
    if (parameter.tensor.requires_grad()) trainable.emplace_back(parameter.name, parameter.tensor);
  }
  replicated_ = FlatParameters(trainable, /*flat_gradients=*/true, model().device,
                               FlatParameters::kNoLimit, {}, comms_.world);
  replicated_taken_.resize(replicated_.slots().size());
  for (const size_t index : plan_.replicated) {
    const at::Tensor& parameter = model().parameters[index].tensor;
    if (!parameter.requires_grad()) continue;
    places_[index].index = static_cast<size_t>(replicated_.find(parameter));
  }
  for (const FlatGroup& group : replicated_.groups()) {
    const auto begin = replicated_.slots().begin();
    flat().add(group, {begin + static_cast<std::ptrdiff_t>(group.first_slot),
                       begin + static_cast<std::ptrdiff_t>(group.end_slot)});
  }
  if (log_enabled(LogLevel::kInfo, "strategy")) {
    int64_t whole = 0, own = 0;
    for (const auto& unit : units_) {
      whole += unit->layout.numel;
      own += unit->layout.shard_numel;
    }
    log(LogLevel::kInfo, "strategy",
        fmt::format("'{}' is sharded by '{}': {} units, {} of {} elements here, {} parameters "
                    "replicated",
                    model().name, comms_.world->backend(), units_.size(), own, whole,
                    plan_.replicated.size()));
  }
}

}  // namespace coupler::strategy
