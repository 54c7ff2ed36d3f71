// HostCopy: a copy in host memory of a piece of a device's memory, until the device needs it again.
// It keeps no device memory alive; that is freed when its users release it. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "activations/version_mark.h"

namespace coupler {

// A range of a storage, in bytes.
struct ByteRange {
  int64_t begin = 0, end = 0;
};

// The part of its storage that a tensor needs, from its first element to its last. If that is at
// least half of the storage, all of it, so that interleaved views share one copy.
ByteRange range_of(const at::Tensor& tensor);

class HostCopy {
 public:
  // The copy of what a tensor with a storage, on a device, needs. Reuses an existing copy of the
  // same version; otherwise the new copy is in flight when this returns.
  static std::shared_ptr<HostCopy> of(const at::Tensor& tensor);

  HostCopy(const at::Tensor& tensor, ByteRange range);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  const ByteRange& range() const { return range_; }

  // Returns the bytes on the device, maybe still in flight. While one caller holds them, later
  // callers share them.
  c10::Storage bring_back();
  // Makes later work on the thread's stream wait until the bytes have arrived.
  void await(const c10::Storage& bytes) const;

 private:
  bool is_of(const at::Tensor& tensor, ByteRange range) const;

  const ByteRange range_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // prevents reuse of its address
  const VersionMark version_;
  const c10::Device device_;
  at::Tensor bytes_;
  mutable std::mutex mutex_;
  c10::weak_intrusive_ptr<c10::StorageImpl> back_;
  std::shared_ptr<c10::Event> arrived_;  // the arrival of back_
};

}  // namespace coupler
