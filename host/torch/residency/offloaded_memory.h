// OffloadedMemory: flat memory for a model's state (parts of parameters, of gradients, an
// optimizer's state) stored on a disk or, for a device's state, in host memory. A tensor of it is
// on the device only while an operation uses it, and shortly before. Owns its buffers, its file, a
// thread that reads ahead and, for a disk, one that writes behind. The training thread uses the
// tensors; any thread may read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "residency/buffer_pool.h"
#include "residency/residency.h"

namespace coupler::residency {

// Where state is kept while nothing uses it. A value.

struct OffloadPlace {
  std::string folder;  // on a disk; empty: host memory
  int buffers = 0;     // for a disk: blocks read ahead, and blocks queued for writing
  bool pinned = true;  // for host memory: pinned, so that copies overlap with computation
};

class OffloadedMemory {
 public:
  // device: where the tensors are used. The CPU's cannot be offloaded to host memory.
  OffloadedMemory(const OffloadPlace& place, c10::Device device);
  ~OffloadedMemory();
  OffloadedMemory(const OffloadedMemory&) = delete;
  OffloadedMemory& operator=(const OffloadedMemory&) = delete;

  // Returns [numel] zeros with their own storage. Errors refer to it by `name`. Operations on it,
  // on its views and on place_in() of it go through the intercept; code that takes pointers needs
  // InUse. Throws Error(kIo) if the disk is full, LibTorch's error if memory is.
  at::Tensor make(const std::string& name, int64_t numel, at::ScalarType type);

  uint64_t bytes() const { return bytes_; }
  // The most bytes on the device at one time; on the CPU, those queued for writing included.
  size_t peak_bytes() const { return (device_.is_cpu() ? pages_ : on_device_).peak_bytes(); }

 private:
  const OffloadPlace place_;
  const c10::Device device_;
  BufferPool pages_{PoolMemory::kPages};  // host memory
  BufferPool on_device_;
  OffloadSource* source_ = nullptr;  // residency_'s
  std::unique_ptr<Residency> residency_;
  uint64_t bytes_ = 0;
};

}  // namespace coupler::residency
