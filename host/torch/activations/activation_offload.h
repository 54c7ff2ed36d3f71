// ActivationOffload: the setting memory.offload_activations, and which of the tensors that
// activation checkpointing keeps are worth moving to host memory. One per process; [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "empty_weights/recording.h"
#include "strategy/model.h"

namespace coupler::activations {

class ActivationOffload {
 public:
  static ActivationOffload& of_process();

  void set_default(bool on) { on_ = on; }
  bool is_default() const { return on_; }

  // A model's parameters and buffers are not moved: they stay on the device in any case.
  void leave_in_place(const strategy::Model& model);
  void forget_all();

  // Whether the tensor is on a device other than the CPU and kept there for backward only.
  bool moves(const at::Tensor& tensor) const;

  // Logs, once per process, that there is nothing to move.
  void log_nothing_moves();

 private:
  std::atomic<bool> on_ = false, logged_ = false;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> in_place_;
};

// VersionMark: shows whether an in-place operation has changed a tensor since the mark was made,
// without keeping the tensor or its memory. [any-thread]
class VersionMark {
 public:
  VersionMark() = default;  // of no tensor; never changes
  explicit VersionMark(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()), version_(now()) {}

  bool changed() const { return now() != version_; }
  bool same_version(const VersionMark& other) const { return version_ == other.version_; }

 private:
  // Tensors made in inference mode have no counter.
  uint32_t now() const { return counter_.enabled() ? counter_.current_version() : 0; }

  c10::VariableVersion counter_;
  uint32_t version_ = 0;
};

// HostCopy: a copy in host memory of a piece of a device's memory, until the device needs it again.
// It keeps no device memory alive; that is freed when its users release it. [any-thread]

// A range of a storage, in bytes.
struct StorageRange {
  int64_t begin = 0, end = 0;
};

// The part of its storage that a tensor needs, from its first element to its last. If that is at
// least half of the storage, all of it, so that interleaved views share one copy.
StorageRange range_of(const at::Tensor& tensor);

class HostCopy {
 public:
  // The copy of what a tensor with a storage, on a device, needs. Reuses an existing copy of the
  // same version; otherwise the new copy is in flight when this returns.
  static std::shared_ptr<HostCopy> of(const at::Tensor& tensor);

  HostCopy(const at::Tensor& tensor, StorageRange range);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  const StorageRange& range() const { return range_; }

  // Returns the bytes on the device, maybe still in flight. While one caller holds them, later
  // callers share them.
  c10::Storage bring_back();
  // Makes later work on the thread's stream wait until the bytes have arrived.
  void await(const c10::Storage& bytes) const;

 private:
  bool is_of(const at::Tensor& tensor, StorageRange range) const;

  const StorageRange range_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // prevents reuse of its address
  const VersionMark version_;
  const c10::Device device_;
  at::Tensor bytes_;
  mutable std::mutex mutex_;
  c10::weak_intrusive_ptr<c10::StorageImpl> back_;
  std::shared_ptr<c10::Event> arrived_;  // the arrival of back_
};

// OffloadedTensors: a device's tensors kept in host memory until backward needs them. Each object
// knows the thread's previous one, which backward needs next, and fetches its tensors ahead.
// Filled by one thread, then brought back by one thread at a time.
class OffloadedTensors {
 public:
  // Creates an object that follows the last one this thread made.
  static std::shared_ptr<OffloadedTensors> make();

  // Adds a dense tensor with values, on a device. Its copy is in flight when this returns; the
  // tensor itself is not kept. Returns its number, counting from 0.
  size_t add(const at::Tensor& tensor);

  // Returns all tensors on their device, without graph, with their strides, sharing memory as
  // before, and starts fetching those of the previous object. May be called repeatedly.
  std::vector<at::Tensor> bring_back();
  // Drops the tensors.
  void forget();

 private:
  struct Tensor {
    empty_weights::TensorGeometry geometry;
    c10::DispatchKey key;
    bool intercepted = false;  // belongs to a model spread over several devices
    std::shared_ptr<HostCopy> copy;
  };
  // Starts fetching; the memory is kept until bring_back takes it.
  void fetch();
  void fetch_locked();

  std::weak_ptr<OffloadedTensors> before_;
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
  std::vector<c10::Storage> fetched_;  // by tensor
};

}  // namespace coupler::activations
