// Fake tensors: tensors on the CPU that have sizes, strides and a type, but no memory. In a dry run
// every operation of the thread comes to a dispatch key below autograd and autocast, which LibTorch
// reserves and does not use (Fake): operations on fake tensors run on the meta device, and give
// fake tensors; others run as they are, but for new tensors of more than kRealBytes, which are
// fake. So a program's own forward, backward and optimizer run with the graph, the types and the
// choices of kernels that they have with memory. One thread of a process; never ended.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler {

// Told of everything that happens to fake memory. Storages are numbered in the order of their
// making.
class FakeObserver {
 public:
  virtual void made(uint64_t storage, uint64_t bytes) = 0;
  virtual void gone(uint64_t storage) = 0;
  // An operation is about to read or write the tensor, fake or not.
  virtual void used(const at::Tensor& tensor) = 0;

 protected:
  ~FakeObserver() = default;
};

// Up to here new tensors are real: the values of small ones may steer a program.
constexpr uint64_t kRealBytes = uint64_t{1} << 20;

// From now on this thread's operations come here. observer: outlives the process.
void begin_fake_tensors(FakeObserver& observer);

// While it lives, this thread's operations are done for real. Without a dry run it does nothing.
class RealTensors {
 public:
  RealTensors();
  ~RealTensors();
  RealTensors(const RealTensors&) = delete;
  RealTensors& operator=(const RealTensors&) = delete;

 private:
  bool before_;
};

// A fake tensor of the same type, sizes and strides.
at::Tensor fake_like(const at::Tensor& tensor);
// The number of a fake tensor's storage; 0 where the tensor is not fake.
uint64_t fake_storage_of(const at::Tensor& tensor);

}  // namespace coupler
