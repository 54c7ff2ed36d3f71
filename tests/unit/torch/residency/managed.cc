#include "managed.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "residency/intercept.h"

namespace coupler::testing {

std::vector<HostMemory::Fill> HostMemory::fills() const {
  const std::lock_guard lock(mutex);
  return log;
}

size_t HostMemory::fills_elsewhere() const {
  const std::vector<Fill> all = fills();
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const Fill& fill) {
    return fill.thread != std::this_thread::get_id();
  }));
}

size_t HostMemory::fills_of(size_t unit) const {
  const std::vector<Fill> all = fills();
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [&](const Fill& fill) { return fill.unit == unit; }));
}

void HostMemory::forget_fills() {
  const std::lock_guard lock(mutex);
  log.clear();
}

void HostMemorySource::fill(size_t unit, void* memory) {
  if (memory_.before_fill) memory_.before_fill(unit);
  const std::lock_guard lock(memory_.mutex);
  std::memcpy(memory, memory_.units[unit].data(), memory_.units[unit].size());
  memory_.log.push_back({unit, std::this_thread::get_id()});
}

void HostMemorySource::store(size_t unit, const void* memory) {
  const std::lock_guard lock(memory_.mutex);
  std::memcpy(memory_.units[unit].data(), memory, memory_.units[unit].size());
}

Managed::Managed(const strategy::Model& model, const ManagedOptions& options)
    : residency_(std::make_unique<residency::Residency>(
          std::make_unique<HostMemorySource>(memory), pool,
          residency::ResidencyOptions{.prefetch = options.prefetch,
                                      .live_bytes = options.live_bytes})) {
  for (size_t module = 0; module < model.modules.size(); ++module) {
    std::vector<const strategy::ModelParameter*> parameters;
    for (const strategy::ModelParameter& parameter : model.parameters) {
      if (parameter.module == module) parameters.push_back(&parameter);
    }
    if (!parameters.empty()) add_unit(model.modules[module].name, parameters, options);
  }
}

void Managed::add_unit(const std::string& name,
                       const std::vector<const strategy::ModelParameter*>& parameters,
                       const ManagedOptions& options) {
  const at::NoGradGuard no_grad;
  auto unit = std::make_unique<residency::Unit>();
  unit->name = name;
  unit->compute_type = options.compute_type;
  unit->output_type = options.output_type;
  std::vector<char> values;
  for (const strategy::ModelParameter* parameter : parameters) {
    const at::ScalarType type = options.compute_type.value_or(parameter->tensor.scalar_type());
    const at::Tensor value = parameter->tensor.detach().to(type).contiguous();
    auto managed = std::make_unique<residency::ManagedStorage>();
    managed->name = parameter->name;
    managed->offset = (values.size() + 63) / 64 * 64;
    values.resize(managed->offset + value.nbytes());
    if (value.numel() > 0) {
      std::memcpy(values.data() + managed->offset, value.const_data_ptr(), value.nbytes());
    }
    parameter->tensor.set_data(residency::make_managed(*managed, value.sizes(), type));
    residency::put_intercept(parameter->tensor);
    unit->storages.push_back(std::move(managed));
  }
  unit->bytes = values.size();
  memory.units.push_back(std::move(values));
  residency_->add(std::move(unit));
}

residency::Unit& Managed::unit(const std::string& name) {
  for (const auto& unit : residency_->units()) {
    if (unit->name == name) return *unit;
  }
  throw std::out_of_range("no unit '" + name + "'");
}

size_t Managed::resident_units() const {
  const auto& units = residency_->units();
  return static_cast<size_t>(std::count_if(units.begin(), units.end(),
                                           [](const auto& unit) { return unit->resident.load(); }));
}

size_t Managed::largest_unit() const {
  size_t largest = 0;
  for (const auto& unit : residency_->units()) largest = std::max(largest, unit->bytes);
  return largest;
}

size_t Managed::total_bytes() const {
  size_t total = 0;
  for (const auto& unit : residency_->units()) total += unit->bytes;
  return total;
}

}  // namespace coupler::testing
