// ShardedModel during backward: units' gradients are reduced into shards as they become complete,
// in the same order on all ranks.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "residency/intercept.h"
#include "residency/unit.h"
#include "strategy/comm_hook.h"
#include "strategy/gradient_compression.h"
#include "strategy/shard_transfer.h"
#include "strategy/sharded_model.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {

void ShardedModel::install_hooks() {
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    if (parameter.requires_grad()) hooks_.add(parameter, weak_from_this(), i);
  }
}

void ShardedModel::begin_backward(double factor) {
  touched_ = false;
  factor_ = factor;
  check_parameters();
}

void ShardedModel::begin() {
  check_parameters();  // begin_backward() may not have run: the backward's model may be unknown
  notify_backward_begin();
  active_ = true;
  touched_ = true;
  change_hook(comms_.world->size() > 1 ? comm_hook() : nullptr);
  next_launch_ = 0;
  completion_order_.clear();
  for (const auto& unit : units_) unit->begin();
  std::fill(replicated_taken_.begin(), replicated_taken_.end(), uint8_t{0});
}

void ShardedModel::change_hook(std::shared_ptr<const NamedHook> hook) {
  // The sums that codecs carry errors of are means under a hook.
  if ((hook == nullptr) != (hook_ == nullptr)) {
    const double ranks = comms_.group->size();
    for (const auto& unit : units_) {
      for (at::Tensor& error : unit->coded.errors) {
        if (error.defined()) error.mul_(hook != nullptr ? 1 / ranks : ranks);
      }
    }
  }
  hook_ = std::move(hook);
}

void ShardedModel::on_gradient(size_t parameter) {
  if (!sync()) return;
  if (!active_) {
    begin();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->finish();
    });
  }
  const Place place = places_[parameter];
  const std::string& name = model().parameters[parameter].name;
  if (place.unit == nullptr) {  // stays where it is until finish()
    if (std::exchange(replicated_taken_[place.index], uint8_t{1}) != 0) throw_second_gradient(name);
    return;
  }
  ShardUnit& unit = *place.unit;
  if (unit.members[place.index].taken) throw_second_gradient(name);
  unit.take_gradient(place.index, pool_);
  if (unit.complete()) {
    completion_order_.push_back(unit.number);
    unit.complete_here = true;
  }
  launch_ready();
}

void ShardedModel::launch_ready() {
  while (next_launch_ < launch_order_.size() && units_[launch_order_[next_launch_]]->complete()) {
    launch(next_launch_++);
  }
}

void ShardedModel::launch(size_t position) {
  ShardUnit& unit = *units_[launch_order_[position]];
  // Its gradients are complete, so this backward no longer needs its parameters.
  if (unit.resident != nullptr) residency_->release(*unit.resident);
  // One at a time, so that no more than two units' gradients take memory.
  finish_reduction();
  under_way_ = &unit;
  const bool last = position + 1 == launch_order_.size() && replicated_.groups().empty();
  unit.begin_reduction(comms_, pool_, factor_, hook_of(unit, last), plan_.overlap);
  if (!plan_.overlap) finish_reduction();
}

std::vector<std::shared_ptr<comm::Communicator>> ShardedModel::communicators() const {
  std::vector<std::shared_ptr<comm::Communicator>> result = {comms_.world, comms_.group,
                                                             comms_.gather};
  if (comms_.copies != nullptr) result.push_back(comms_.copies);
  return result;
}

UnitHook ShardedModel::hook_of(const ShardUnit& unit, bool last) const {
  UnitHook result{.hook = hook_, .model = model().name, .last = last};
  if (hook_ == nullptr) return result;
  result.related = communicators();
  for (size_t i = 0; i < unit.number; ++i) result.first_bucket += count_buckets(units_[i]->layout);
  for (const ShardMember& member : unit.members) result.names.push_back(member.name);
  return result;
}

void ShardedModel::finish_reduction() {
  ShardUnit* const unit = std::exchange(under_way_, nullptr);
  if (unit == nullptr) return;
  if (!unit->complete_here || !has_consumers()) {
    unit->finish_reduction(comms_);
    return;
  }
  // If the gradient is offloaded, it is used before it would have to be written back.
  residency::InUse in_memory(unit->gradient, unit->has_gradient()
                                                 ? residency::InUse::Access::kWrite
                                                 : residency::InUse::Access::kReplace);
  unit->finish_reduction(comms_);
  if (hand_over(*unit)) in_memory.drop_writes();
}

// Does publish()'s work for consumers. Gradients that this rank produced are
// defined on every rank. Returns whether all of them were used.
bool ShardedModel::hand_over(ShardUnit& unit) {
  for (ShardMember& member : unit.members) {
    if (member.own.defined()) member.own.mutable_grad() = member.gradient;
  }
  notify_gradients_ready(flat(), unit.first_slot, unit.end_slot);
  bool all = true;
  for (ShardMember& member : unit.members) {
    if (!member.parameter.requires_grad()) continue;
    // Parts that only other ranks hold are used there in the same way.
    member.used = !member.own.defined() || !member.own.grad().defined();
    if (member.used) member.parameter.unsafeGetTensorImpl()->bump_version();
    all = all && member.used;
  }
  return all;
}

void ShardedModel::end_backward(bool takes_part) {
  if (!takes_part) factor_ = 1;
  if (takes_part && sync() && !touched_ && !active_) {
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
  // One flag per parameter: whether this rank has a gradient for it. Then the hash of this rank's
  // unit order and its complement; the maximum over ranks changes neither if all orders are equal.
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
  comms_.world->run(tensors::all_reduce_op(used, DB_MAX));
  if (std::memcmp(flags + count, orders, sizeof orders) != 0) give_up_order();
  publish(used);
  if (!buffers_.empty()) tensors::broadcast_coalesced(*comms_.world, buffers_, 0);
  if (!order_learned_) learn_launch_order();
}

// Completes the units with gradients that this backward did not produce: those accumulated by
// earlier backwards without synchronization, or zeros. used: one flag per parameter, set if this
// rank has a gradient.
void ShardedModel::take_rest(uint8_t* used) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    if (!parameter.requires_grad()) continue;
    const Place place = places_[i];
    if (place.unit == nullptr && !is_trained(i)) continue;  // unfrozen since, so it has no slot
    const bool taken = place.unit != nullptr && place.unit->members[place.index].taken;
    used[i] = taken || parameter.grad().defined() ? 1 : 0;
    if (place.unit != nullptr && !taken) place.unit->take_gradient(place.index, pool_);
  }
}

void ShardedModel::reduce_replicated() {
  const at::Tensor scale =
      at::scalar_tensor(hook_ != nullptr ? factor_ : factor_ / comms_.world->size(), at::kDouble);
  for (FlatSlot& slot : replicated_.slots()) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) {
      slot.gradient.zero_();
      continue;
    }
    require_dense_gradient(gradient, slot.name);
    at::mul_out(slot.gradient, gradient, scale);
  }
  for (size_t i = 0; i < replicated_.groups().size(); ++i) {
    FlatGroup& group = replicated_.groups()[i];
    hook_ != nullptr ? reduce_by_hook(i)
                     : comms_.world->run(tensors::all_reduce_op(group.gradients, DB_SUM));
  }
}

// After all units; one bucket for each group.
void ShardedModel::reduce_by_hook(size_t number) {
  const FlatGroup& group = replicated_.groups()[number];
  const at::Tensor memory = group.gradients.narrow(0, 0, group.parameters.numel());
  BucketContent content{
      .model = model().name,
      .index = number,
      .last = number + 1 == replicated_.groups().size(),
      .buffer = memory,
      .result = memory,
      .related = communicators(),
      .padding = padding_in(replicated_.slots(), group.first_slot, group.end_slot, memory)};
  for (const auto& unit : units_) content.index += count_buckets(unit->layout);
  for (size_t slot = group.first_slot; slot < group.end_slot; ++slot) {
    content.names.push_back(replicated_.slots()[slot].name);
    content.parameters.push_back(replicated_.slots()[slot].parameter);
    content.gradients.push_back(replicated_.slots()[slot].gradient);
  }
  const auto whole = whole_reduction(memory);
  HookWork(hook_, std::make_shared<HookedBucket>(
                      std::move(content), comms_.world,
                      [&] { return std::make_shared<ReductionWork>(*comms_.world, *whole, true); }))
      .finish();
}

// Called on every rank: if orders differ, so does the maximum of hash or complement on each.
void ShardedModel::give_up_order() {
  if (order_given_up_) return;
  order_given_up_ = true;
  residency_->stop_prefetching();
  if (comms_.world->rank() != 0) return;
  log(LogLevel::kWarning, "strategy",
      fmt::format(
          "the ranks use the modules of '{}' in different orders: parameters are now gathered "
          "when they are needed, not ahead",
          model().name));
}

// Parameters that no rank used keep the gradient they had.
void ShardedModel::publish(const at::Tensor& used) {
  const auto* const flags = used.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < places_.size(); ++i) {
    if (flags[i] == 0) continue;
    const Place place = places_[i];
    if (place.unit == nullptr) {
      FlatSlot& slot = replicated_.slots()[place.index];
      slot.parameter.mutable_grad() = slot.gradient;
      continue;
    }
    ShardMember& member = place.unit->members[place.index];
    if (member.own.defined() && !member.used) member.own.mutable_grad() = member.gradient;
  }
}

// Units are reduced in the order in which rank 0's first backward completed them.
void ShardedModel::learn_launch_order() {
  order_learned_ = true;
  const std::vector<size_t> units =
      sharding::learned_reduce_order(completion_order_, launch_order_);
  if (units.empty()) return;
  std::vector<int64_t> order(units.begin(), units.end());
  const at::Tensor shared =
      at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
  comms_.world->run(tensors::broadcast_op(shared, 0));
  launch_order_.assign(order.begin(), order.end());
}

}  // namespace coupler::strategy
