#include "strategy/sharded_model.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "comm/tensor_ops.h"
#include "log/log.h"
#include "residency/intercept.h"
#include "strategy/gradient_norm.h"
#include "strategy/shard_transfer.h"

namespace coupler {

void ShardedModel::install_hooks() {
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    if (parameter.requires_grad()) hooks_.add(parameter, weak_from_this(), i);
  }
}

ShardedModel::~ShardedModel() = default;

// ---- Backward ----

void ShardedModel::begin_backward(double factor) {
  touched_ = false;
  factor_ = factor;
  check_parameters();
}

void ShardedModel::begin() {
  check_parameters();  // begin_backward is only called where it is known whose backward this is
  active_ = true;
  touched_ = true;
  next_launch_ = 0;
  completion_order_.clear();
  for (const auto& unit : units_) unit->begin();
  std::fill(replicated_taken_.begin(), replicated_taken_.end(), uint8_t{0});
}

void ShardedModel::on_gradient(size_t parameter) {
  if (!sync_) return;
  if (!active_) {
    begin();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->finish();
    });
  }
  const Place place = places_[parameter];
  const std::string& name = model().parameters[parameter].name;
  if (place.unit < 0) {  // stays where it is until finish()
    if (std::exchange(replicated_taken_[place.index], uint8_t{1}) != 0) throw_second_gradient(name);
    return;
  }
  const auto number = static_cast<size_t>(place.unit);
  if (units_[number]->members[place.index].taken) throw_second_gradient(name);
  units_[number]->take_gradient(place.index, pool_);
  if (units_[number]->complete()) completion_order_.push_back(number);
  launch_ready();
}

void ShardedModel::launch_ready() {
  while (next_launch_ < launch_order_.size() && units_[launch_order_[next_launch_]]->complete()) {
    launch(next_launch_++);
  }
}

void ShardedModel::launch(size_t position) {
  ShardUnit& unit = *units_[launch_order_[position]];
  // Its gradients are complete, so this backward is done with its parameters.
  if (unit.resident != nullptr) residency_->release(*unit.resident);
  // One at a time, so that no more than two units' gradients take memory.
  finish_reduction();
  under_way_ = &unit;
  unit.begin_reduction(comms_, pool_, factor_, plan_.overlap);
  if (!plan_.overlap) finish_reduction();
}

void ShardedModel::finish_reduction() {
  if (ShardUnit* unit = std::exchange(under_way_, nullptr)) unit->finish_reduction(comms_);
}

void ShardedModel::end_backward() {
  if (sync_ && !touched_ && !active_) {
    begin();
    finish();
  }
  if (residency_ != nullptr) residency_->end_of_pass();
}

void ShardedModel::abandon_backward() {
  active_ = false;
  factor_ = 1;
  under_way_ = nullptr;
  for (const auto& unit : units_) unit->abandon();
  if (residency_ != nullptr) residency_->end_of_pass();
}

void ShardedModel::finish() {
  const at::NoGradGuard no_grad;
  active_ = false;
  const size_t count = model().parameters.size();
  // One flag for each parameter: whether this rank has a gradient for it. Behind them this rank's
  // order of units, and its complement: the maximum over ranks of both is what it was where all
  // have the same.
  const uint64_t order = residency_ == nullptr ? 0 : residency_->order_hash();
  const uint64_t orders[] = {order, ~order};
  const at::Tensor used = at::zeros({static_cast<int64_t>(count + sizeof orders)}, at::kByte);
  auto* const flags = used.mutable_data_ptr<uint8_t>();
  std::memcpy(flags + count, orders, sizeof orders);
  take_rest(flags);
  launch_ready();
  finish_reduction();
  reduce_replicated();
  factor_ = 1;
  comms_.world->run(all_reduce_op(used, DB_MAX));
  if (std::memcmp(flags + count, orders, sizeof orders) != 0) give_up_order();
  publish(used);
  if (!buffers_.empty()) broadcast_coalesced(*comms_.world, buffers_, 0);
  if (!order_learnt_) learn_launch_order();
}

// Completes the units with what this backward did not bring: gradients that earlier backwards
// without synchronisation accumulated, else zeros. used: one flag for each parameter, set where
// this rank has a gradient.
void ShardedModel::take_rest(uint8_t* used) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    if (!parameter.requires_grad()) continue;
    const Place place = places_[i];
    ShardUnit* const unit =
        place.unit < 0 ? nullptr : units_[static_cast<size_t>(place.unit)].get();
    const bool taken = unit != nullptr && unit->members[place.index].taken;
    used[i] = taken || parameter.grad().defined() ? 1 : 0;
    if (unit != nullptr && !taken) unit->take_gradient(place.index, pool_);
  }
}

void ShardedModel::reduce_replicated() {
  const at::Tensor scale = at::scalar_tensor(factor_ / comms_.world->size(), at::kDouble);
  for (FlatSlot& slot : replicated_.slots()) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) {
      slot.gradient.zero_();
      continue;
    }
    require_dense_gradient(gradient, slot.name);
    at::mul_out(slot.gradient, gradient, scale);
  }
  for (FlatGroup& group : replicated_.groups()) {
    comms_.world->run(all_reduce_op(group.gradients, DB_SUM));
  }
}

// On every rank, since on each some other one has another order.
void ShardedModel::give_up_order() {
  if (order_given_up_) return;
  order_given_up_ = true;
  residency_->stop_fetching_ahead();
  if (comms_.world->rank() != 0) return;
  log(LogLevel::kWarning, "strategy",
      fmt::format(
          "the ranks use the modules of '{}' in different orders: from now on parameters are "
          "gathered when they are needed, not ahead",
          model().name));
}

// What no rank used keeps the gradient it had.
void ShardedModel::publish(const at::Tensor& used) {
  const auto* const flags = used.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < places_.size(); ++i) {
    if (flags[i] == 0) continue;
    const Place place = places_[i];
    if (place.unit < 0) {
      FlatSlot& slot = replicated_.slots()[place.index];
      slot.parameter.mutable_grad() = slot.gradient;
      continue;
    }
    ShardMember& member = units_[static_cast<size_t>(place.unit)]->members[place.index];
    if (member.own.defined()) member.own.mutable_grad() = member.gradient;
  }
}

// Units are reduced in the order in which rank 0's first backward completed them.
void ShardedModel::learn_launch_order() {
  order_learnt_ = true;
  std::vector<int64_t> order;
  std::vector<bool> listed(units_.size());
  for (const size_t unit : completion_order_) {
    order.push_back(static_cast<int64_t>(unit));
    listed[unit] = true;
  }
  for (const size_t unit : launch_order_) {
    if (!listed[unit]) order.push_back(static_cast<int64_t>(unit));
  }
  const at::Tensor shared =
      at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
  if (order.empty()) return;
  comms_.world->run(broadcast_op(shared, 0));
  launch_order_.assign(order.begin(), order.end());
}

// ---- After backward ----

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
  check_parameters();  // a change of type has taken our hooks with it: no backward told us
  if (residency_ != nullptr) residency_->release_all();
  for (const auto& unit : units_) {
    if (unit->resident != nullptr) continue;
    gather_unit(*comms_.group, unit->layout, unit->plan.type, unit->master.const_data_ptr(),
                unit->whole.mutable_data_ptr(), pool_);
  }
}

// What this rank holds of a parameter's gradient; undefined where that is nothing.
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
    // Every rank comes here: all of them name the first parameter at fault on any.
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

// One by one: what lies between the parts of a unit is not always zero. With what was only
// accumulated, which is with the parameters yet.
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

// What the ranks of a group hold of one parameter (or of its gradient), joined: as if the parameter
// were a unit of its own. shard: master or gradient of its unit.
at::Tensor ShardedModel::gather_member(size_t parameter, const at::Tensor& shard) {
  const Place place = places_[parameter];
  const ShardUnit& unit = *units_[static_cast<size_t>(place.unit)];
  PlannedUnit alone = unit.plan;
  alone.parameters = {unit.plan.parameters[place.index]};
  const ShardLayout layout(alone, model(), unit.layout.rank, unit.layout.ranks);
  const at::Tensor value = at::empty(model().parameters[parameter].tensor.sizes(), shard.options());
  const ShardPart& part = unit.members[place.index].part;
  const char* const own = static_cast<const char*>(shard.const_data_ptr()) +
                          static_cast<size_t>(part.shard_offset) * shard.element_size();
  gather_unit(*comms_.group, layout, shard.scalar_type(), own, value.mutable_data_ptr(), pool_);
  return value;
}

at::Tensor ShardedModel::whole_gradient(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  size_t i = 0;
  while (!model().parameters[i].tensor.is_same(parameter)) ++i;
  // What was only accumulated is still with the parameter.
  if (places_[i].unit < 0 || parameter.grad().defined()) return parameter.grad();
  const at::Tensor known = at::scalar_tensor(gradient_of(i).defined() ? 1 : 0, at::kByte);
  comms_.world->run(all_reduce_op(known, DB_MAX));
  if (known.item<int>() == 0) return {};
  return gather_member(i, units_[static_cast<size_t>(places_[i].unit)]->gradient);
}

void ShardedModel::for_each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    const ModelParameter& parameter = model().parameters[i];
    const Place place = places_[i];
    if (place.unit < 0 || units_[static_cast<size_t>(place.unit)]->resident == nullptr) {
      visit(parameter.name, parameter.tensor.detach());
      continue;
    }
    const ShardUnit& unit = *units_[static_cast<size_t>(place.unit)];
    visit(parameter.name, gather_member(i, unit.master));
  }
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
