// HostCopy: a piece of a device's memory, in host memory until it is needed there again. It holds
// no memory of the device: that goes when those who use it let go. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "offload/version_mark.h"

namespace coupler {

// Of a storage, in bytes.
struct ByteRange {
  int64_t begin = 0, end = 0;
};

// What a tensor needs of its storage: from its first element to its last; all of it where that is
// most of it, so that views which lie in one another's gaps have it in common.
ByteRange range_of(const at::Tensor& tensor);

class HostCopy {
 public:
  // Of what a tensor with a storage, on a device, needs. Where there is a copy of that already, of
  // the same version, it is that one; else it is on its way when this returns.
  static std::shared_ptr<HostCopy> of(const at::Tensor& tensor);

  HostCopy(const at::Tensor& tensor, ByteRange range);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  const ByteRange& range() const { return range_; }

  // The bytes on the device, on their way: the same ones for all who have them at a time.
  c10::Storage bring_back();
  // What the thread's stream is given from now on finds the bytes there.
  void await(const c10::Storage& bytes) const;

 private:
  bool is_of(const at::Tensor& tensor, ByteRange range) const;

  const ByteRange range_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // its address is not used anew
  const VersionMark version_;
  const c10::Device device_;
  at::Tensor bytes_;
  mutable std::mutex mutex_;
  c10::weak_intrusive_ptr<c10::StorageImpl> back_;
  std::shared_ptr<c10::Event> arrived_;  // back_
};

}  // namespace coupler
