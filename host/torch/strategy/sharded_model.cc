#include "strategy/sharded_model.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "residency/intercept.h"
#include "residency/unit.h"
#include "strategy/model.h"
#include "strategy/shard_transfer.h"
#include "tensors/tensor_ops.h"

namespace coupler {

ShardedModel::~ShardedModel() = default;

std::vector<at::Tensor> ShardedModel::held_for(const at::Tensor& parameter) {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!model().parameters[i].tensor.is_same(parameter)) continue;
    const Place place = places_[i];
    if (place.unit < 0) return {parameter};
    const ShardMember& member = units_[static_cast<size_t>(place.unit)]->members[place.index];
    if (member.own.defined()) result.push_back(member.own);
  }
  return result;
}

void ShardedModel::parameters_changed() {
  const at::NoGradGuard no_grad;
  check_parameters();  // a change of type removes our hooks, so backward did not check
  if (residency_ != nullptr) residency_->release_all();
  for (const auto& unit : units_) {
    if (unit->resident != nullptr) continue;
    gather_unit(*comms_.group, unit->layout, unit->plan.type, unit->master.const_data_ptr(),
                unit->whole.mutable_data_ptr(), pool_);
  }
}

// This rank's part of a parameter's gradient; undefined if it has none.
at::Tensor ShardedModel::gradient_of(size_t parameter) const {
  if (!model().parameters[parameter].tensor.requires_grad()) return {};
  const Place place = places_[parameter];
  if (place.unit < 0) return model().parameters[parameter].tensor.grad();
  const at::Tensor& own = units_[static_cast<size_t>(place.unit)]->members[place.index].own;
  return own.defined() ? own.grad() : at::Tensor();
}

double ShardedModel::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> divided, replicated;
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor gradient = gradient_of(i);
    if (gradient.defined()) (places_[i].unit < 0 ? replicated : divided).push_back(gradient);
  }
  const double sum = all_reduce_number(*comms_.group, sum_of_squares(divided), DB_SUM);
  const double norm = std::sqrt(sum + sum_of_squares(replicated));
  if (!std::isfinite(norm)) {
    // Every rank gets here, and all name the first parameter that is not finite on any rank.
    auto first = static_cast<int64_t>(places_.size());
    for (size_t i = places_.size(); i-- > 0;) {
      const at::Tensor gradient = gradient_of(i);
      if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) {
        first = static_cast<int64_t>(i);
      }
    }
    const at::Tensor index = at::scalar_tensor(first, at::kLong);
    comms_.world->run(all_reduce_op(index, DB_MIN));
    throw_not_finite(norm, index.item<int64_t>(), model());
  }
  divided.insert(divided.end(), replicated.begin(), replicated.end());
  scale_to_norm(divided, norm, max_norm);
  return norm;
}

void ShardedModel::clip_grad_value(double max_value) {
  const at::NoGradGuard no_grad;
  for (FlatSlot& slot : flat_.slots()) {
    if (slot.parameter.grad().defined())
      slot.parameter.mutable_grad().clamp_(-max_value, max_value);
  }
}

// One by one, since the memory between a unit's parts is not always zero. Includes gradients that
// were only accumulated, which are still with the parameters.
std::vector<at::Tensor> ShardedModel::own_gradients() {
  std::vector<at::Tensor> result;
  for (const FlatSlot& slot : flat_.slots()) {
    if (slot.parameter.grad().defined()) result.push_back(slot.parameter.grad());
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& accumulated = model().parameters[i].tensor.grad();
    if (places_[i].unit >= 0 && accumulated.defined()) result.push_back(accumulated);
  }
  return result;
}

std::string ShardedModel::description() const {
  return fmt::format("{} units sharded over groups of {} ranks, {} parameters whole on every rank",
                     units_.size(), plan_.group_size, plan_.replicated.size());
}

ModelTypes ShardedModel::types() const {
  ModelTypes result;
  for (const auto& unit : units_) {
    result.stored.insert(unit->plan.type);
    result.computed.insert(unit->plan.compute_type);
    result.reduced.insert(unit->plan.reduce_type);
  }
  for (const size_t index : plan_.replicated) {
    const at::ScalarType type = model().parameters[index].tensor.scalar_type();
    result.stored.insert(type);
    result.computed.insert(type);
    result.reduced.insert(type);
  }
  return result;
}

// Gathers one parameter (or its gradient) from the ranks of a group, as if the parameter were a
// separate unit. shard: master or gradient of its unit.
at::Tensor ShardedModel::gather_member(size_t parameter, const at::Tensor& shard) {
  const Place place = places_[parameter];
  const ShardUnit& unit = *units_[static_cast<size_t>(place.unit)];
  PlannedUnit alone = unit.plan;
  alone.parameters = {unit.plan.parameters[place.index]};
  const ShardLayout layout = layout_of(alone, model(), unit.layout.rank, unit.layout.ranks);
  const at::Tensor value = at::empty(model().parameters[parameter].tensor.sizes(), shard.options());
  const ShardPart& part = unit.members[place.index].part;
  const InUse in_memory(shard);
  const char* const own = static_cast<const char*>(shard.const_data_ptr()) +
                          static_cast<size_t>(part.shard_offset) * shard.element_size();
  gather_unit(*comms_.group, layout, shard.scalar_type(), own, value.mutable_data_ptr(), pool_);
  return value;
}

at::Tensor ShardedModel::whole_gradient(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  size_t i = 0;
  while (!model().parameters[i].tensor.is_same(parameter)) ++i;
  // A gradient that was only accumulated is still with the parameter.
  if (places_[i].unit < 0 || parameter.grad().defined()) return parameter.grad();
  const at::Tensor known = at::scalar_tensor(gradient_of(i).defined() ? 1 : 0, at::kByte);
  comms_.world->run(all_reduce_op(known, DB_MAX));
  if (known.item<int>() == 0) return {};
  return gather_member(i, units_[static_cast<size_t>(places_[i].unit)]->gradient);
}

NamedTensors ShardedModel::carried() {
  NamedTensors result;
  for (const auto& unit : units_) {
    for (size_t i = 0; i < unit->coded.errors.size(); ++i) {
      const at::Tensor& error = unit->coded.errors[i];
      if (!error.defined()) continue;
      result.emplace_back(fmt::format("gradient_error/{}/{}", unit->plan.name, i), error);
    }
  }
  return result;
}

void ShardedModel::gradient_scale_changes(double factor) {
  for (const auto& unit : units_) {
    for (at::Tensor& error : unit->coded.errors) {
      if (error.defined()) error.mul_(factor);
    }
  }
}

at::Tensor ShardedModel::whole_parameter(size_t parameter) {
  const at::NoGradGuard no_grad;
  const Place place = places_[parameter];
  if (place.unit < 0 || units_[static_cast<size_t>(place.unit)]->resident == nullptr) {
    return model().parameters[parameter].tensor.detach();
  }
  return gather_member(parameter, units_[static_cast<size_t>(place.unit)]->master);
}

std::vector<ParameterPart> ShardedModel::parts() {
  const int copies = comms_.copies != nullptr ? comms_.copies->size() : 1;
  const int copy = comms_.copies != nullptr ? comms_.copies->rank() : 0;
  std::vector<ParameterPart> result;
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    const bool trains = parameter.requires_grad();
    if (places_[i].unit < 0) {
      result.push_back({.parameter = i,
                        .begin = 0,
                        .end = parameter.numel(),
                        .values = parameter.detach(),
                        .held = trains ? parameter : at::Tensor(),
                        .copies = comms_.world->size(),
                        .copy = comms_.world->rank()});
      continue;
    }
    const ShardUnit& unit = *units_[static_cast<size_t>(places_[i].unit)];
    const ShardMember& member = unit.members[places_[i].index];
    const ShardPart& part = member.part;
    if (part.begin == part.end && part.numel > 0) continue;
    result.push_back({.parameter = i,
                      .begin = part.begin,
                      .end = part.end,
                      .values = place_in(unit.master, part.shard_offset, {part.end - part.begin}),
                      .held = member.own,
                      .copies = copies,
                      .copy = copy});
  }
  return result;
}

void ShardedModel::check_parameters() const {
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place place = places_[i];
    if (place.unit < 0) continue;
    const ShardUnit& unit = *units_[static_cast<size_t>(place.unit)];
    const ModelParameter& parameter = model().parameters[i];
    const bool same = unit.resident == nullptr
                          ? parameter.tensor.storage().data() == unit.whole.storage().data()
                          : has_intercept(parameter.tensor) && home_of(parameter.tensor) != nullptr;
    if (same) continue;
    throw Error(
        ErrorCode::kUsage,
        fmt::format("the data of parameter '{}' was replaced after prepare (by set_data, or "
                    "by moving the model to another device or type)",
                    parameter.name),
        {.subject = parameter.name,
         .hint = "convert the model before accelerator.prepare; write values inside "
                 "coupler::summon_full_parameters(net, true)"});
  }
}

}  // namespace coupler
