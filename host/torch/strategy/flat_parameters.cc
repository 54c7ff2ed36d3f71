#include "strategy/flat_parameters.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <map>

#include "empty_weights/empty_weights.h"
#include "residency/intercept.h"

namespace coupler {
namespace {

// Slots start at multiples of 64 bytes, so kernels on a view are as fast as on a separate tensor.
constexpr int64_t kSlotAlignment = 64;

int64_t padded(int64_t numel, int64_t element_size) {
  const int64_t unit = kSlotAlignment / element_size;
  return (numel + unit - 1) / unit * unit;
}

}  // namespace

at::Tensor place_in(const at::Tensor& memory, int64_t offset, at::IntArrayRef sizes) {
  at::Tensor result = at::empty({0}, memory.options());
  result.set_(memory.storage(), memory.storage_offset() + offset, sizes,
              c10::contiguous_strides(sizes));
  if (has_intercept(memory)) put_intercept(result);
  return result;
}

FlatParameters::FlatParameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                               bool flat_gradients, c10::Device device, int64_t most_elements) {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<FlatSlot>> by_type;
  for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
    const at::Tensor& parameter = it->second;
    by_type[parameter.scalar_type()].push_back(
        {.name = it->first, .parameter = parameter, .numel = parameter.numel()});
  }
  std::vector<std::vector<FlatSlot>> parts;
  for (auto& [type, slots] : by_type) {
    int64_t elements = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i == 0 || slots[i].numel > most_elements - elements) {
        parts.emplace_back();
        elements = 0;
      }
      elements += slots[i].numel;
      parts.back().push_back(std::move(slots[i]));
    }
  }
  for (std::vector<FlatSlot>& slots : parts) {
    const bool last = groups_.size() + 1 == parts.size();
    add_group(std::move(slots), flat_gradients, last ? static_cast<int64_t>(parameters.size()) : 0,
              device);
  }
}

void FlatParameters::add_group(std::vector<FlatSlot> slots, bool flat_gradients, int64_t flags,
                               c10::Device device) {
  const auto options = at::TensorOptions(slots.front().parameter.scalar_type()).device(device);
  int64_t total = 0;
  for (FlatSlot& slot : slots) {
    slot.offset = total;
    total += padded(slot.numel, slot.parameter.element_size());
  }
  FlatGroup group;
  group.parameters = at::zeros({total}, options);
  if (flat_gradients) {
    group.gradients = at::zeros({total + flags}, options);
    if (flags > 0) flags_ = group.gradients.narrow(0, total, flags);
  }
  for (FlatSlot& slot : slots) {
    const at::Tensor data = place_in(group.parameters, slot.offset, slot.parameter.sizes());
    data.copy_(slot.parameter);
    if (slot.parameter.grad().defined()) {
      slot.parameter.mutable_grad() = slot.parameter.grad().to(device);
    }
    set_value(slot.parameter, data);
    if (flat_gradients) {
      slot.gradient = place_in(group.gradients, slot.offset, slot.parameter.sizes());
    }
  }
  add(std::move(group), std::move(slots));
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

}  // namespace coupler
