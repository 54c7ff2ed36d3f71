// GradientCodec: encodes fp32 numbers as fewer bytes and decodes them. One object may serve many
// buckets; it keeps no state between calls. All tensors of a call are on one device; pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "config/config.h"

namespace coupler {

class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  // The encoded size of n numbers.
  virtual int64_t bytes(int64_t n) const = 0;
  // values: [n] of kFloat. into: [bytes(n)] of kByte, 16-byte aligned. residual: [n], set to values
  // minus what decode() will return, 0 if that is not finite; undefined: not computed. Infinite and
  // NaN values decode to values that are not finite.
  virtual void encode(const at::Tensor& values, at::Tensor into, at::Tensor residual) const = 0;
  // Writes into values, or adds to them.
  virtual void decode(const at::Tensor& from, at::Tensor values, bool add) const = 0;
  // Whether encoding loses so much that the loss must be carried over to the next step.
  virtual bool needs_error_feedback() const = 0;
};

// bf16, fp16 or int8 of communication.gradients; null for the others.
std::shared_ptr<const GradientCodec> make_codec(const CommunicationConfig& config);

}  // namespace coupler
