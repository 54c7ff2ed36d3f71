// Fake tensors: CPU tensors with sizes, strides and a dtype, but without memory. In a dry run,
// every operation of the thread goes through a dispatch key below autograd and autocast that
// LibTorch reserves but does not use (Fake). Operations on fake tensors run on the meta device and
// return fake tensors; others run unchanged, except that new tensors of more than kRealBytes are
// fake. So a program's own forward, backward and optimizer run with the same graph, dtypes and
// kernels as with memory. new_empty of a fake tensor is fake whatever its size: memory for what
// ranks send that do not exist (comm::Communicator::made_up). One thread per process; never ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler::dry_run {

// Notified of everything that happens to fake memory. Storages are numbered in the order of
// creation.
class FakeObserver {
 public:
  virtual void made(uint64_t storage, uint64_t bytes) = 0;
  virtual void gone(uint64_t storage) = 0;
  // An operation is about to read or write the tensor, fake or not.
  virtual void used(const at::Tensor& tensor) = 0;

 protected:
  ~FakeObserver() = default;
};

// New tensors up to this size are real: a program may depend on the values of small ones.
constexpr uint64_t kRealBytes = uint64_t{1} << 20;

// From now on this thread's operations are intercepted. observer: must live until the process
// exits.
void begin_fake_tensors(FakeObserver& observer);

// While it lives, this thread's operations run for real. Without a dry run it has no effect.
class RealTensors {
 public:
  RealTensors();
  ~RealTensors();
  RealTensors(const RealTensors&) = delete;
  RealTensors& operator=(const RealTensors&) = delete;

 private:
  bool before_;
};

// A fake tensor of the same dtype, sizes and strides.
at::Tensor fake_like(const at::Tensor& tensor);
// The number of a fake tensor's storage; 0 if the tensor is not fake.
uint64_t fake_storage_of(const at::Tensor& tensor);

}  // namespace coupler::dry_run
