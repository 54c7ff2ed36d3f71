// EmptyWeights: while one lives, models built by its thread take no memory. Their parameters and
// buffers are on the meta device, which knows shapes but holds no values, and remember how they
// were made, so that they can be given exactly their values later, one after the other.
//
//   Net net{nullptr};
//   {
//     coupler::EmptyWeights empty;
//     net = Net(options);  // 100 billion parameters in milliseconds
//   }
//
// Same seed, same weights: what is materialised is bit for bit what the constructors would have
// given without the scope, whatever was drawn in between. torch::manual_seed may stand before the
// scope or inside. The scope itself leaves the default CPU generator at a point of its own that
// depends on nothing but the seed: what is drawn outside afterwards differs from a run without it.
//
// Inside the scope
// - every new tensor is on meta; a device(kCPU), device(kMeta) or none means the same. Another
//   device is an error: weights move when they are materialised.
// - torch::tensor({…}) and torch::from_blob(…).clone() work, and so does writing through the data
//   pointer of a tensor fresh from torch::empty (up to 64 KiB, and before any operation on it). Any
//   other use of a data pointer throws LibTorch's own error, "data is not allocated yet".
// - .item(), bool(tensor) and shapes that depend on values work for what is not drawn at random
//   (drop-path rates from a linspace); else they throw coupler::Error naming the operation.
// - tensors from before the scope stay as they are, and so do views of them. What is computed from
//   them is recorded and takes their values when it is materialised: leave them unchanged till
//   then.
//
// Belongs to one thread and ends there; other threads notice nothing. Scopes nest; the outermost
// one's options count.
//
// InitOnDevice: while one lives, tensors that its thread makes without naming a device are made on
// that one: models are built where they are to be.
//
//   { coupler::InitOnDevice on({c10::kCUDA, 0}); net = Net(options); }
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace coupler {

// For EmptyWeights and InitOnDevice.
struct EmptyWeightsOptions {
  // Whether buffers are without memory, too. If not, what requires no gradient when the scope ends
  // gets its values then: buffers, and parameters that are frozen by then.
  bool include_buffers = true;
};

class EmptyWeights {
 public:
  // From here on, until the scope ends, on this thread.
  explicit EmptyWeights(const EmptyWeightsOptions& options = {});
  ~EmptyWeights();
  EmptyWeights(const EmptyWeights&) = delete;
  EmptyWeights& operator=(const EmptyWeights&) = delete;
};

// A scope in which tensors are made on a device: Accelerate's init_on_device.
class InitOnDevice {
 public:
  // kMeta is EmptyWeights with these options. What is made with a device of its own, from C++
  // values (torch::tensor) or from another tensor stays where that says.
  explicit InitOnDevice(c10::Device device, const EmptyWeightsOptions& options = {});
  ~InitOnDevice();
  InitOnDevice(const InitOnDevice&) = delete;
  InitOnDevice& operator=(const InitOnDevice&) = delete;

 private:
  std::optional<EmptyWeights> empty_;
  std::optional<c10::Device> before_;  // of a scope around this one
};

}  // namespace coupler
