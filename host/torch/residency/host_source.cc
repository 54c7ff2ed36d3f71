#include "residency/host_source.h"

#include <ATen/ops/zeros.h>

#include "device/pinned.h"
#include "device/streams.h"
#include "device/torch_device_memory.h"

namespace coupler {

void HostSource::add(size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  at::Tensor room = pinned_ ? host_bytes(count, device_).zero_() : at::zeros({count}, at::kByte);
  const std::lock_guard lock(mutex_);
  places_.push_back({std::move(room), nullptr});
}

HostSource::Place HostSource::place(size_t unit) const {
  const std::lock_guard lock(mutex_);
  return places_.at(unit);
}

void HostSource::fill(size_t unit, void* memory) {
  const Place from = place(unit);
  wait_on_stream(from.stored, device_);
  over_memory(memory, from.bytes.numel(), at::kByte, device_)
      .copy_(from.bytes, /*non_blocking=*/pinned_);
}

void HostSource::store(size_t unit, const void* memory) {
  Place to = place(unit);
  to.bytes.copy_(over_memory(memory, to.bytes.numel(), at::kByte, device_),
                 /*non_blocking=*/pinned_);
  auto stored = mark_stream(device_);
  const std::lock_guard lock(mutex_);
  places_[unit].stored = std::move(stored);
}

}  // namespace coupler
