#include "residency/host_source.h"

#include <ATen/ops/zeros.h>

#include "device/device_memory.h"

namespace coupler::residency {

void HostSource::add(size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  at::Tensor room =
      pinned_ ? device::host_bytes(count, device_).zero_() : at::zeros({count}, at::kByte);
  const std::lock_guard lock(mutex_);
  places_.push_back({std::move(room), nullptr});
}

HostSource::Place HostSource::place(size_t unit) const {
  const std::lock_guard lock(mutex_);
  return places_.at(unit);
}

void HostSource::fill(size_t unit, void* memory) {
  const Place from = place(unit);
  device::wait_on_stream(from.stored, device_);
  device::over_memory(memory, from.bytes.numel(), at::kByte, device_)
      .copy_(from.bytes, /*non_blocking=*/pinned_);
}

void HostSource::store(size_t unit, const void* memory) {
  Place to = place(unit);
  to.bytes.copy_(device::over_memory(memory, to.bytes.numel(), at::kByte, device_),
                 /*non_blocking=*/pinned_);
  auto stored = device::mark_stream(device_);
  const std::lock_guard lock(mutex_);
  places_[unit].stored = std::move(stored);
}

void StagedSource::add(size_t bytes) {
  source_->add(bytes);
  const std::lock_guard lock(mutex_);
  bytes_.push_back(bytes);
}

size_t StagedSource::bytes_of(size_t unit) const {
  const std::lock_guard lock(mutex_);
  return bytes_.at(unit);
}

void StagedSource::fill(size_t unit, void* memory) {
  const size_t bytes = bytes_of(unit);
  const BufferPool::Buffer staged = pages_.take(bytes);
  source_->fill(unit, staged.data());
  const auto count = static_cast<int64_t>(bytes);
  device::over_memory(memory, count, at::kByte, device_).copy_(staged.as(at::kByte, count));
}

BufferPool::Buffer StagedSource::brought(size_t unit, const void* memory) {
  const size_t bytes = bytes_of(unit);
  BufferPool::Buffer staged = pages_.take(bytes);
  const auto count = static_cast<int64_t>(bytes);
  staged.as(at::kByte, count).copy_(device::over_memory(memory, count, at::kByte, device_));
  return staged;
}

void StagedSource::store(size_t unit, const void* memory) {
  source_->store(unit, brought(unit, memory).data());
}

void StagedSource::write_back(size_t unit, BufferPool::Buffer memory) {
  source_->write_back(unit, brought(unit, memory.data()));
}

}  // namespace coupler::residency
