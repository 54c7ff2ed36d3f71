#include "residency/staged_source.h"

#include <ATen/core/Tensor.h>

#include "device/torch_device_memory.h"

namespace coupler {

void StagedSource::fill(size_t unit, void* memory) {
  const BufferPool::Buffer staged = pages_.take(bytes_.at(unit));
  source_->fill(unit, staged.data());
  const auto count = static_cast<int64_t>(bytes_[unit]);
  over_memory(memory, count, at::kByte, device_)
      .copy_(over_memory(staged.data(), count, at::kByte, at::kCPU));
}

BufferPool::Buffer StagedSource::brought(size_t unit, const void* memory) {
  BufferPool::Buffer staged = pages_.take(bytes_.at(unit));
  const auto count = static_cast<int64_t>(bytes_[unit]);
  over_memory(staged.data(), count, at::kByte, at::kCPU)
      .copy_(over_memory(memory, count, at::kByte, device_));
  return staged;
}

void StagedSource::store(size_t unit, const void* memory) {
  source_->store(unit, brought(unit, memory).data());
}

void StagedSource::put_away(size_t unit, BufferPool::Buffer memory) {
  source_->put_away(unit, brought(unit, memory.data()));
}

}  // namespace coupler
