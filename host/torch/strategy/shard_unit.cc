#include "strategy/shard_unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/device_memory.h"
#include "residency/intercept.h"
#include "residency/unit.h"
#include "strategy/gradient_hooks.h"
#include "strategy/shard_transfer.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

// In 16 bits the sum of many gradients may overflow, so those are divided before they are summed.
bool is_narrow(at::ScalarType type) { return c10::elementSize(type) < 4; }

}  // namespace

sharding::ShardLayout layout_of(const PlannedUnit& unit, const Model& model, int rank, int ranks) {
  std::vector<sharding::ShardParameter> parameters;
  for (const PlannedParameter& parameter : unit.parameters) {
    const at::Tensor& tensor = model.parameters[parameter.index].tensor;
    parameters.push_back({.index = parameter.index,
                          .bounds = &parameter.bounds,
                          .numel = tensor.numel(),
                          .trains = tensor.requires_grad()});
  }
  return sharding::ShardLayout(parameters, unit.gradients == DB_GRADIENTS_WHOLE, rank, ranks);
}

ShardUnit::ShardUnit(const PlannedUnit& planned, const Model& model, int rank, int ranks)
    : plan(planned), device(model.device), layout(layout_of(planned, model, rank, ranks)) {
  for (const sharding::ShardPart& part : layout.parts) {
    const ModelParameter& parameter = model.parameters[part.index];
    members.push_back({.name = parameter.name, .parameter = parameter.tensor, .part = part});
  }
}

void ShardUnit::take_value(size_t index, const at::Tensor& value) {
  const sharding::ShardPart& part = members[index].part;
  if (part.begin == part.end) return;
  const int64_t own = part.end - part.begin;
  place_in(master, part.shard_offset, {own})
      .copy_(value.contiguous().view({-1}).narrow(0, part.begin, own));
}

void ShardUnit::make_variables() {
  for (ShardMember& member : members) {
    const sharding::ShardPart& part = member.part;
    if (part.begin == part.end || !member.parameter.requires_grad()) continue;
    member.own = place_in(master, part.shard_offset, {part.end - part.begin});
    member.own.set_requires_grad(true);
    member.gradient = place_in(gradient, part.shard_offset, {part.end - part.begin});
  }
}

void ShardUnit::encode_gradients(const std::shared_ptr<const GradientCodec>& codec) {
  if (codec == nullptr || plan.reduce_type != at::kFloat || layout.ranks == 1) return;
  coded.codec = codec;
  coded.errors.assign(layout.transfers.size(), {});
  if (!codec->needs_error_feedback()) return;
  for (size_t i = 0; i < layout.transfers.size(); ++i) {
    const sharding::ShardTransfer& transfer = layout.transfers[i];
    if (!transfer.trains) continue;
    coded.errors[i] = at::zeros({transfer.numel}, at::TensorOptions(at::kFloat).device(device));
  }
}

void ShardUnit::begin() {
  waiting_ = 0;
  complete_here = false;
  for (ShardMember& member : members) {
    member.taken = false;
    member.used = false;
    if (member.parameter.requires_grad()) ++waiting_;
  }
}

void ShardUnit::abandon() {
  { const UnitReduction ended = std::move(reduction_); }  // waits before it frees memory
  reduced_.reset();
  room_ = {};
  kept_.reset();
  for (ShardMember& member : members) member.alone.reset();
  staging_.reset();
  staging_room_ = {};
}

void ShardUnit::need_staging(residency::BufferPool& pool) {
  if (staging_.defined()) return;
  if (whole_gradient.defined()) {
    const bool overwrites = layout.in_place() && plan.reduce_type == plan.type;
    if (overwrites && has_gradient()) kept_ = gradient.clone();
    staging_ = whole_gradient;
    return;
  }
  staging_room_ = pool.take_to_send(static_cast<size_t>(layout.staging_numel) *
                                    c10::elementSize(plan.reduce_type));
  staging_ = staging_room_.as(plan.reduce_type, layout.staging_numel);
}

void ShardUnit::take_gradient(size_t index, residency::BufferPool& pool) {
  const at::NoGradGuard no_grad;
  ShardMember& member = members[index];
  at::Tensor& arrived = member.parameter.mutable_grad();
  if (arrived.defined()) require_dense_gradient(arrived, member.name);
  member.taken = true;
  --waiting_;
  if (member.part.staging_offset < 0) {
    member.alone = arrived.defined()
                       ? arrived.to(plan.reduce_type).contiguous()
                       : at::zeros(member.parameter.sizes(),
                                   at::TensorOptions(plan.reduce_type).device(device));
  } else {
    need_staging(pool);
    const at::Tensor place = staging_.narrow(0, member.part.staging_offset, member.part.numel)
                                 .view(member.parameter.sizes());
    arrived.defined() ? place.copy_(arrived) : place.zero_();
  }
  arrived.reset();
}

// Frozen members and the padding between members are sent too, inside runs.
void ShardUnit::clear_padding() {
  std::vector<std::pair<int64_t, int64_t>> gradients;
  for (const ShardMember& member : members) {
    if (member.part.staging_offset < 0 || !member.parameter.requires_grad()) continue;
    gradients.emplace_back(member.part.staging_offset,
                           member.part.staging_offset + member.part.numel);
  }
  std::sort(gradients.begin(), gradients.end());
  int64_t end = 0;
  gradients.emplace_back(layout.staging_numel, layout.staging_numel);
  for (const auto& [begin, next_end] : gradients) {
    if (begin > end) staging_.narrow(0, end, begin - end).zero_();
    end = next_end;
  }
}

bool ShardUnit::has_gradient() const {
  return std::any_of(members.begin(), members.end(), [](const ShardMember& member) {
    return member.own.defined() && member.own.grad().defined();
  });
}

void ShardUnit::begin_reduction(const ShardComms& comms, residency::BufferPool& pool, double factor,
                                const UnitHook& hook, bool overlap) {
  const at::NoGradGuard no_grad;
  factor_ = factor;
  double before = 1;
  after_ = factor / comms.world->size();
  if (hook.hook != nullptr) {  // it averages over the group itself
    before = factor;
    after_ = comms.copies != nullptr ? 1.0 / comms.copies->size() : 1;
  } else if (is_narrow(plan.reduce_type)) {
    before = std::exchange(after_, 1);
  }
  if (staging_.defined()) clear_padding();
  if (before != 1) {
    if (staging_.defined()) staging_.mul_(before);
    for (ShardMember& member : members) {
      if (member.alone.defined()) member.alone.mul_(before);
    }
  }
  // Reduces directly into gradient, unless that holds values that must be kept.
  reduced_ = gradient;
  if (plan.reduce_type != plan.type || (!kept_.defined() && has_gradient()) ||
      residency::managed_storage_of(gradient) != nullptr) {
    const size_t size = c10::elementSize(plan.reduce_type);
    room_ = pool.take(static_cast<size_t>(layout.shard_numel) * size);
    reduced_ = room_.as(plan.reduce_type, layout.shard_numel).zero_();
  }
  std::vector<at::Tensor> alone;  // by transfer
  for (const sharding::ShardTransfer& transfer : layout.transfers) {
    alone.push_back(transfer.alone >= 0 ? members[static_cast<size_t>(transfer.alone)].alone
                                        : at::Tensor());
  }
  reduction_ =
      reduce_unit(comms.group, layout, alone, staging_, reduced_, pool, coded, hook, overlap);
}

void ShardUnit::finish_reduction(const ShardComms& comms) {
  const at::NoGradGuard no_grad;
  reduction_.wait();
  if (comms.copies != nullptr && layout.shard_numel > 0) {
    comms.copies->run(tensors::all_reduce_op(reduced_, DB_SUM));
  }
  if (room_) {
    const bool first = !has_gradient();
    const residency::InUse in_memory(
        gradient, first ? residency::InUse::Access::kReplace : residency::InUse::Access::kWrite);
    if (first && residency::managed_storage_of(gradient) != nullptr) gradient.zero_();
    for (ShardMember& member : members) {
      if (!member.own.defined()) continue;
      if (!member.own.grad().defined()) {
        member.gradient.zero_();
      } else if (factor_ != 1.0) {
        member.gradient.mul_(factor_);
      }
      add_to_gradient(member, reduced_, after_);
    }
  } else {
    if (after_ != 1.0) gradient.mul_(after_);
    for (const ShardMember& member : members) {
      const bool kept = kept_.defined() && member.own.defined() && member.own.grad().defined();
      if (kept) add_to_gradient(member, kept_, factor_);
    }
  }
  abandon();
}

// values: laid out like gradient.
void ShardUnit::add_to_gradient(const ShardMember& member, const at::Tensor& values, double scale) {
  const at::Tensor own = values.narrow(0, member.part.shard_offset, member.gradient.numel());
  member.gradient.add_(own.to(member.gradient.scalar_type()), scale);
}

void PeerSource::explain(size_t unit, const std::exception& cause) const {
  const auto* error = dynamic_cast<const Error*>(&cause);
  const std::string& name = units_[unit]->plan.name;
  throw Error(
      error != nullptr ? error->code() : ErrorCode::kInternal,
      fmt::format("the parameters of unit '{}' could not be gathered: {}", name, cause.what()),
      {.rank = error != nullptr ? error->detail().rank : -1,
       .subject = name,
       .hint = "every rank must use sharded parameters; if only one needs them, "
               "let all enter coupler::summon_full_parameters"});
}

size_t PeerSource::agree(size_t wanted) {
  if (comm_->size() == 1) return wanted;
  auto chosen = static_cast<int64_t>(wanted);
  try {
    comm_->run(tensors::broadcast_op(at::from_blob(&chosen, {1}, at::kLong), 0));
  } catch (const std::exception& cause) {
    explain(wanted, cause);
  }
  return static_cast<size_t>(chosen);
}

void PeerSource::fill(size_t index, void* memory) {
  const ShardUnit& unit = *units_[index];
  const at::ScalarType type = unit.plan.compute_type;
  const residency::InUse in_memory(unit.master);
  residency::BufferPool::Buffer room;
  at::Tensor shard = unit.master;
  if (type != unit.plan.type && unit.layout.shard_numel > 0) {
    room =
        pool_.take_to_send(static_cast<size_t>(unit.layout.shard_numel) * c10::elementSize(type));
    const at::NoGradGuard no_grad;
    shard = room.as(type, unit.layout.shard_numel).copy_(unit.master);
  }
  try {
    gather_unit(*comm_, unit.layout, shard,
                device::over_memory(memory, unit.layout.numel, type, unit.device), pool_);
  } catch (const std::exception& cause) {
    explain(index, cause);
  }
}

void PeerSource::store(size_t index, const void* memory) {
  ShardUnit& unit = *units_[index];
  const at::NoGradGuard no_grad;
  const at::Tensor whole =
      device::over_memory(memory, unit.layout.numel, unit.plan.compute_type, unit.device);
  for (size_t i = 0; i < unit.members.size(); ++i) {
    const sharding::ShardPart& part = unit.members[i].part;
    unit.take_value(i, whole.narrow(0, part.offset, part.numel));
  }
}

}  // namespace coupler::strategy
