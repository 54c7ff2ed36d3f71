#include "strategy/sharded_model.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "residency/intercept.h"
#include "residency/unit.h"
#include "strategy/model.h"
#include "strategy/shard_transfer.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {

std::optional<ParameterPart> ShardedModel::part(size_t parameter) {
  const at::Tensor& whole = model().parameters[parameter].tensor;
  const Place place = places_[parameter];
  if (place.unit == nullptr) {
    return ParameterPart{.parameter = parameter,
                         .begin = 0,
                         .end = whole.numel(),
                         .values = whole.detach(),
                         .optimizer_tensor = whole,
                         .copies = comms_.world->size(),
                         .copy = comms_.world->rank()};
  }
  const ShardMember& member = place.unit->members[place.index];
  const sharding::ShardPart& own = member.part;
  if (own.begin == own.end && own.numel > 0) return std::nullopt;
  return ParameterPart{
      .parameter = parameter,
      .begin = own.begin,
      .end = own.end,
      .values = place_in(place.unit->master, own.shard_offset, {own.end - own.begin}),
      .optimizer_tensor = member.own,
      .copies = comms_.copies != nullptr ? comms_.copies->size() : 1,
      .copy = comms_.copies != nullptr ? comms_.copies->rank() : 0};
}

at::ScalarType ShardedModel::stored_type(size_t parameter) const {
  const ShardUnit* const unit = places_[parameter].unit;
  return unit == nullptr ? Strategy::stored_type(parameter) : unit->plan.type;
}

void ShardedModel::parameters_changed(ParameterWriter) {
  const at::NoGradGuard no_grad;
  check_parameters();  // a change of type removes our hooks, so backward did not check
  if (residency_ != nullptr) residency_->release_all();
  for (const auto& unit : units_) {
    if (unit->resident != nullptr) continue;
    gather_unit(*comms_.group, unit->layout, unit->master, unit->whole, pool_);
  }
}

// This rank's part of a parameter's gradient; undefined if it has none.
at::Tensor ShardedModel::gradient_of(size_t parameter) const {
  if (!model().parameters[parameter].tensor.requires_grad()) return {};
  const Place place = places_[parameter];
  if (place.unit == nullptr) return model().parameters[parameter].tensor.grad();
  const at::Tensor& own = place.unit->members[place.index].own;
  return own.defined() ? own.grad() : at::Tensor();
}

double ShardedModel::gradient_norm(const GradientNorm& which) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> divided, replicated;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!which.covers(i)) continue;
    const at::Tensor gradient = gradient_of(i);
    if (gradient.defined()) (places_[i].unit == nullptr ? replicated : divided).push_back(gradient);
  }
  const double power = tensors::all_reduce_number(*comms_.group, which.power_of(divided),
                                                  which.is_maximum() ? DB_MAX : DB_SUM);
  const double norm = which.norm_of(which.together(power, which.power_of(replicated)));
  if (std::isfinite(norm)) return norm;
  // Every rank gets here, and all name the first parameter that is not finite on any rank.
  const double first = tensors::all_reduce_number(
      *comms_.world, static_cast<double>(first_not_finite(which)), DB_MIN);
  throw_not_finite(norm, static_cast<size_t>(first), model());
}

// Includes gradients that were only accumulated, which are still with the parameters.
std::vector<at::Tensor> ShardedModel::own_gradients() {
  std::vector<at::Tensor> result = flat().gradients();
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& accumulated = model().parameters[i].tensor.grad();
    if (places_[i].unit != nullptr && accumulated.defined()) result.push_back(accumulated);
  }
  return result;
}

// Gathers one parameter (or its gradient) from the ranks of a group, as if the parameter were a
// separate unit. shard: master or gradient of its unit.
at::Tensor ShardedModel::gather_member(size_t parameter, const at::Tensor& shard) {
  const Place place = places_[parameter];
  const ShardUnit& unit = *place.unit;
  PlannedUnit alone = unit.plan;
  alone.parameters = {unit.plan.parameters[place.index]};
  const sharding::ShardLayout layout =
      layout_of(alone, model(), unit.layout.rank, unit.layout.ranks);
  const at::Tensor value = at::empty(model().parameters[parameter].tensor.sizes(), shard.options());
  const sharding::ShardPart& part = unit.members[place.index].part;
  const residency::InUse in_memory(shard);
  const at::Tensor own = place_in(shard, part.shard_offset, {part.end - part.begin});
  gather_unit(*comms_.group, layout, own, value, pool_);
  return value;
}

at::Tensor ShardedModel::whole_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  const Place place = places_[parameter];
  const at::Tensor& here = model().parameters[parameter].tensor.grad();
  // A gradient that was only accumulated is still with the parameter.
  if (place.unit == nullptr || here.defined()) return here;
  const double known = gradient_of(parameter).defined() ? 1 : 0;
  if (tensors::all_reduce_number(*comms_.world, known, DB_MAX) == 0) return {};
  return gather_member(parameter, place.unit->gradient);
}

std::vector<StateTensor> ShardedModel::state_tensors() {
  std::vector<StateTensor> result;
  for (const auto& unit : units_) {
    for (size_t i = 0; i < unit->coded.errors.size(); ++i) {
      const at::Tensor& error = unit->coded.errors[i];
      if (!error.defined()) continue;
      result.push_back({.name = fmt::format("gradient_error/{}/{}", unit->plan.name, i),
                        .tensor = error,
                        .scales_with_loss = true});
    }
  }
  return result;
}

at::Tensor ShardedModel::whole_parameter(size_t parameter) {
  const at::NoGradGuard no_grad;
  const Place place = places_[parameter];
  if (place.unit == nullptr || place.unit->resident == nullptr) {
    return model().parameters[parameter].tensor.detach();
  }
  return gather_member(parameter, place.unit->master);
}

void ShardedModel::check_parameters() const {
  for (size_t i = 0; i < places_.size(); ++i) {
    const ShardUnit* const unit = places_[i].unit;
    if (unit == nullptr) continue;
    const ModelParameter& parameter = model().parameters[i];
    const bool same = unit->resident == nullptr
                          ? parameter.tensor.storage().data() == unit->whole.storage().data()
                          : residency::has_intercept(parameter.tensor) &&
                                residency::managed_storage_of(parameter.tensor) != nullptr;
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

}  // namespace coupler::strategy
