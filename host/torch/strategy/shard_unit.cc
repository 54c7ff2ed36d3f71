#include "strategy/shard_unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

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
    ShardMember member;
    member.name = parameter.name;
    member.parameter = parameter.tensor;
    member.part = part;
    members.push_back(std::move(member));
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
  reduction_ = {};
  reduced_.reset();
  room_ = {};
  kept_.reset();
  for (ShardMember& member : members) member.alone.reset();
  staging_ = {};
  staging_memory_ = nullptr;
}

void ShardUnit::need_staging(residency::BufferPool& pool) {
  if (staging_memory_ != nullptr) return;
  if (whole_gradient.defined()) {
    if (layout.in_place() && has_gradient()) kept_ = gradient.clone();
    staging_memory_ = whole_gradient.mutable_data_ptr();
    return;
  }
  staging_ =
      pool.take(static_cast<size_t>(layout.staging_numel) * c10::elementSize(plan.reduce_type));
  staging_memory_ = staging_.data();
}

at::Tensor ShardUnit::staging_view(const ShardMember& member) {
  const size_t size = c10::elementSize(plan.reduce_type);
  return device::over_memory(static_cast<char*>(staging_memory_) +
                                 static_cast<size_t>(member.part.staging_offset) * size,
                             member.parameter.numel(), plan.reduce_type, device)
      .view(member.parameter.sizes());
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
    at::Tensor place = staging_view(member);
    arrived.defined() ? place.copy_(arrived) : place.zero_();
  }
  arrived.reset();
}

// Frozen members and the padding between members are sent too, inside runs.
void ShardUnit::clear_padding() {
  const size_t size = c10::elementSize(plan.reduce_type);
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
    if (begin > end) {
      device::over_memory(static_cast<char*>(staging_memory_) + static_cast<size_t>(end) * size,
                          begin - end, plan.reduce_type, device)
          .zero_();
    }
    end = next_end;
  }
}

bool ShardUnit::has_gradient() const {
  return std::any_of(members.begin(), members.end(), [](const ShardMember& member) {
    return member.own.defined() && member.own.grad().defined();
  });
}

// By transfer; null if its gradients are in staging.
std::vector<const void*> ShardUnit::gradients_alone() {
  std::vector<const void*> result;
  for (const sharding::ShardTransfer& transfer : layout.transfers) {
    const at::Tensor gradient_alone =
        transfer.alone >= 0 ? members[static_cast<size_t>(transfer.alone)].alone : at::Tensor();
    result.push_back(gradient_alone.defined() ? gradient_alone.const_data_ptr() : nullptr);
  }
  return result;
}

void ShardUnit::begin_reduction(const ShardComms& comms, residency::BufferPool& pool, double factor,
                                bool overlap) {
  const at::NoGradGuard no_grad;
  factor_ = factor;
  const double scale = factor / comms.world->size();
  const bool narrow = is_narrow(plan.reduce_type);
  if (staging_memory_ != nullptr) {
    clear_padding();
    if (narrow) {
      device::over_memory(staging_memory_, layout.staging_numel, plan.reduce_type, device)
          .mul_(scale);
    }
  }
  if (narrow) {
    for (ShardMember& member : members) {
      if (member.alone.defined()) member.alone.mul_(scale);
    }
  }
  // Reduces directly into gradient, unless that holds values that must be kept.
  reduced_ = gradient;
  if (plan.reduce_type != plan.type || (!kept_.defined() && has_gradient()) ||
      residency::managed_storage_of(gradient) != nullptr) {
    const size_t size = c10::elementSize(plan.reduce_type);
    room_ = pool.take(static_cast<size_t>(layout.shard_numel) * size);
    reduced_ = device::over_memory(room_.data(), layout.shard_numel, plan.reduce_type, device);
    reduced_.zero_();
  }
  reduction_ = reduce_unit(*comms.group, layout, plan.reduce_type, gradients_alone(),
                           staging_memory_, reduced_.mutable_data_ptr(), pool, coded, overlap);
}

void ShardUnit::finish_reduction(const ShardComms& comms) {
  const at::NoGradGuard no_grad;
  reduction_.wait();
  if (comms.copies != nullptr && layout.shard_numel > 0) {
    comms.copies->run(tensors::all_reduce_op(reduced_, DB_SUM));
  }
  const double scale = is_narrow(plan.reduce_type) ? 1.0 : factor_ / comms.world->size();
  if (room_) {
    const bool first = !has_gradient();
    const residency::InUse in_memory(
        gradient, first ? residency::InUse::Access::kReplace : residency::InUse::Access::kWrite);
    if (first && residency::managed_storage_of(gradient) != nullptr) gradient.zero_();
    if (factor_ != 1.0) scale_gradient();
    add_to_gradient(reduced_, scale);
  } else {
    if (scale != 1.0) gradient.mul_(scale);
    if (kept_.defined()) add_to_gradient(kept_, factor_);
  }
  abandon();
}

// Scales the gradient that an earlier backward left.
void ShardUnit::scale_gradient() {
  for (const ShardMember& member : members) {
    if (!member.own.defined() || !member.own.grad().defined()) continue;
    at::Tensor place = member.gradient;
    place.mul_(factor_);
  }
}

// Adds to the gradient an earlier backward left; if that is in kept_, `reduced` is kept_, which is
// added to this backward's gradient.
void ShardUnit::add_to_gradient(const at::Tensor& reduced, double scale) {
  for (const ShardMember& member : members) {
    if (!member.own.defined()) continue;
    at::Tensor place = member.gradient;
    if (!kept_.defined() && !member.own.grad().defined()) place.zero_();
    if (kept_.defined() && !member.own.grad().defined()) continue;
    const at::Tensor own = reduced.narrow(0, member.part.shard_offset, place.numel());
    place.add_(own.to(place.scalar_type()), scale);
  }
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
  uint64_t chosen = wanted;
  db_op op{};
  op.kind = DB_BROADCAST;
  op.dtype = DB_U64;
  op.memory = DB_MEMORY_HOST;
  op.send = op.recv = &chosen;
  op.count = 1;
  try {
    comm_->run(op);
  } catch (const std::exception& cause) {
    explain(wanted, cause);
  }
  return chosen;
}

void PeerSource::fill(size_t index, void* memory) {
  const ShardUnit& unit = *units_[index];
  const at::ScalarType type = unit.plan.compute_type;
  const residency::InUse in_memory(unit.master);
  residency::BufferPool::Buffer room;
  const void* shard = unit.master.const_data_ptr();
  if (type != unit.plan.type && unit.layout.shard_numel > 0) {
    room = pool_.take(static_cast<size_t>(unit.layout.shard_numel) * c10::elementSize(type));
    const at::NoGradGuard no_grad;
    device::over_memory(room.data(), unit.layout.shard_numel, type, unit.device).copy_(unit.master);
    shard = room.data();
  }
  try {
    gather_unit(*comm_, unit.layout, type, shard, memory, pool_);
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
