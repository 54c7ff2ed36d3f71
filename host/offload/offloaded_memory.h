// OffloadedMemory: flat memory of a model's state (parts of parameters, of gradients, an
// optimizer's state) whose place is on a disk, or, of a device's, in host memory: a tensor of it is
// on the device while an operation uses it, and a while ahead. Owns its buffers, its file and two
// threads, one that reads ahead and one that writes behind. The tensors are used by the thread that
// trains and, to be read, by any.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "offload/offload_place.h"
#include "residency/buffer_pool.h"
#include "residency/residency.h"

namespace coupler {

class OffloadedMemory {
 public:
  // device: where it is used. In host memory the CPU's has nothing to be fetched from: not that.
  OffloadedMemory(const OffloadPlace& place, c10::Device device);
  ~OffloadedMemory();
  OffloadedMemory(const OffloadedMemory&) = delete;
  OffloadedMemory& operator=(const OffloadedMemory&) = delete;

  // [numel] of zeros, with a storage of its own. Errors about it name it so. Operations on it, on
  // views of it and on place_in() of it go through the intercept; who takes pointers needs InUse.
  // Throws Error(kIo) where the disk has no room, LibTorch's where memory has none.
  at::Tensor make(const std::string& name, int64_t numel, at::ScalarType type);

  uint64_t bytes() const { return bytes_; }
  // The most that was on the device at one time; on the CPU, what waited to be written included.
  size_t peak_bytes() const { return (device_.is_cpu() ? pages_ : on_device_).peak_bytes(); }

 private:
  std::unique_ptr<Source> make_source();

  const OffloadPlace place_;
  const c10::Device device_;
  BufferPool pages_{PoolMemory::kPages};  // host memory
  BufferPool on_device_;
  std::function<void(size_t bytes)> add_;  // a unit to residency_'s source
  std::unique_ptr<Residency> residency_;
  uint64_t bytes_ = 0;
};

}  // namespace coupler
