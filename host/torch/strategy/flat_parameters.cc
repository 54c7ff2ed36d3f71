#include "strategy/flat_parameters.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "empty_weights/empty_weights.h"
#include "residency/intercept.h"
#include "residency/peer_memory.h"
#include "sharding/flat_layout.h"

namespace coupler::strategy {

at::Tensor place_in(const at::Tensor& memory, int64_t offset, at::IntArrayRef sizes) {
  at::Tensor result = at::empty({0}, memory.options());
  result.set_(memory.storage(), memory.storage_offset() + offset, sizes,
              c10::contiguous_strides(sizes));
  if (residency::has_intercept(memory)) residency::put_intercept(result);
  return result;
}

std::vector<at::Tensor> padding_in(const std::vector<FlatSlot>& slots, size_t first, size_t end,
                                   const at::Tensor& memory) {
  std::vector<at::Tensor> result;
  const int64_t begin = slots[first].offset;
  int64_t at = 0;
  const auto add_until = [&](int64_t next) {
    if (next > at) result.push_back(memory.narrow(0, at, next - at));
  };
  for (size_t i = first; i < end; ++i) {
    add_until(slots[i].offset - begin);
    at = slots[i].offset - begin + slots[i].numel;
  }
  add_until(memory.numel());
  return result;
}

FlatParameters::FlatParameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                               bool flat_gradients, c10::Device device, int64_t most_elements,
                               const std::vector<std::shared_ptr<comm::Communicator>>& averaging,
                               const std::shared_ptr<comm::Communicator>& comm) {
  const at::NoGradGuard no_grad;
  const auto averaging_of = [&](size_t i) { return averaging.empty() ? nullptr : averaging[i]; };
  std::vector<sharding::FlatParameter> sizes;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].second;
    // Those that other ranks average come first: the last group's gradients carry the flags.
    const int after = averaging_of(i) != nullptr ? 0 : static_cast<int>(at::ScalarType::NumOptions);
    sizes.push_back({.dtype = after + static_cast<int>(parameter.scalar_type()),
                     .element_size = static_cast<int64_t>(parameter.element_size()),
                     .numel = parameter.numel()});
  }
  for (const sharding::FlatLayout& layout : sharding::lay_out_flat(sizes, most_elements)) {
    const at::ScalarType type = parameters[layout.parameters.front()].second.scalar_type();
    const auto options = at::TensorOptions(type).device(device);
    FlatGroup group;
    group.averaging = averaging_of(layout.parameters.front());
    comm::Communicator* const ranks =
        group.averaging != nullptr ? group.averaging.get() : comm.get();
    group.parameters =
        residency::zeros_to_send(flat_gradients ? nullptr : ranks, layout.numel, options);
    if (flat_gradients) {
      group.gradients = residency::zeros_to_send(ranks, layout.numel + layout.flags, options);
      if (layout.flags > 0) flags_ = group.gradients.narrow(0, layout.numel, layout.flags);
    }
    std::vector<FlatSlot> slots;
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const auto& [name, parameter] = parameters[layout.parameters[i]];
      FlatSlot slot{.name = name,
                    .parameter = parameter,
                    .offset = layout.offsets[i],
                    .numel = parameter.numel(),
                    .registered = layout.parameters[i]};
      const at::Tensor data = place_in(group.parameters, slot.offset, parameter.sizes());
      data.copy_(parameter);
      if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().to(device);
      empty_weights::set_value(parameter, data);
      if (flat_gradients) {
        slot.gradient = place_in(group.gradients, slot.offset, parameter.sizes());
      }
      slots.push_back(std::move(slot));
    }
    add(std::move(group), std::move(slots));
  }
}

void FlatParameters::add(FlatGroup group, std::vector<FlatSlot> slots) {
  group.first_slot = slots_.size();
  group.end_slot = slots_.size() + slots.size();
  for (FlatSlot& slot : slots) {
    slot.group = static_cast<int>(groups_.size());
    slots_.push_back(std::move(slot));
  }
  groups_.push_back(std::move(group));
}

std::vector<at::Tensor> FlatParameters::gradients() const {
  std::vector<at::Tensor> result;
  // The padding in memory that a caller has added is not always zero, and that has no flags.
  bool whole = flags_.defined();
  for (const FlatSlot& slot : slots_) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (gradient.defined()) result.push_back(gradient);
    // Gradients that were only accumulated (no_sync) are not in flat memory yet.
    whole = whole && gradient.is_same(slot.gradient);
  }
  if (!whole) return result;
  result.clear();
  for (const FlatGroup& group : groups_) {
    const FlatSlot& last = slots_[group.end_slot - 1];
    result.push_back(group.gradients.narrow(0, 0, last.offset + last.numel));
  }
  return result;
}

int FlatParameters::find(const at::Tensor& parameter) const {
  const auto it = std::find_if(slots_.begin(), slots_.end(), [&](const FlatSlot& slot) {
    return slot.parameter.is_same(parameter);
  });
  return it == slots_.end() ? -1 : static_cast<int>(it - slots_.begin());
}

}  // namespace coupler::strategy
