// OffloadedMemory: flat memory of a model's state (parts of parameters, of gradients, an
// optimizer's state) whose place is on a disk: a tensor of it is in memory while an operation uses
// it, and a while ahead. Owns its buffers, its file and two threads, one that reads ahead and one
// that writes behind. The tensors are used by the thread that trains and, to be read, by any.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "offload/disk_source.h"
#include "residency/buffer_pool.h"
#include "residency/residency.h"

namespace coupler {

class OffloadedMemory {
 public:
  // folder: on the disk. buffers: tensors that are read ahead, and that wait to be written.
  OffloadedMemory(const std::string& folder, int buffers);
  ~OffloadedMemory();
  OffloadedMemory(const OffloadedMemory&) = delete;
  OffloadedMemory& operator=(const OffloadedMemory&) = delete;

  // [numel] of zeros, with a storage of its own. Errors about it name it so. Operations on it, on
  // views of it and on place_in() of it go through the intercept; who takes pointers needs InUse.
  // Throws Error(kIo) where the disk has no room.
  at::Tensor make(const std::string& name, int64_t numel, at::ScalarType type);

  uint64_t bytes() const { return bytes_; }
  // The most that was in memory at one time, what waited to be written included.
  size_t peak_bytes() const { return pool_.peak_bytes(); }

 private:
  const std::string folder_;
  BufferPool pool_{PoolMemory::kPages};
  DiskSource* source_;  // residency_'s
  Residency residency_;
  uint64_t bytes_ = 0;
};

}  // namespace coupler
