// GradientCodec: numbers in fp32 as fewer bytes and back. One object may serve many buckets; it
// keeps nothing between calls. All tensors of a call are on one device; pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "config/config.h"

namespace coupler {

class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  // What n numbers become.
  virtual int64_t bytes(int64_t n) const = 0;
  // values: [n] of kFloat. into: [bytes(n)] of kByte, 16-byte aligned. residual: [n], becomes
  // values minus what decode() will give, 0 where that is not finite; undefined: nobody asks. What
  // is infinite or NaN decodes to what is not finite, either.
  virtual void encode(const at::Tensor& values, at::Tensor into, at::Tensor residual) const = 0;
  // Writes into values, or adds to them.
  virtual void decode(const at::Tensor& from, at::Tensor values, bool add) const = 0;
  // Whether what is lost is so much that it has to be carried over to the next step.
  virtual bool needs_error_feedback() const = 0;
};

// bf16, fp16 or int8 of communication.gradients; null for the others.
std::shared_ptr<const GradientCodec> make_codec(const CommunicationConfig& config);

}  // namespace coupler
