// BucketReduction: sums one bucket of gradients over the ranks with a number of collectives, the
// same on every rank, and local work before, between and after them. Its owner issues the
// collectives, so that all of a communicator's are in one order. Used by the thread that runs
// backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/distributed_backend.h>

#include <memory>

#include "config/config.h"

namespace coupler::strategy {

class BucketReduction {
 public:
  BucketReduction() = default;
  virtual ~BucketReduction() = default;
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // How many collectives the next reduction takes; at least one.
  virtual int operations() const = 0;
  // The i-th of them, once those before are complete. Its memory is valid until the next call.
  virtual db_op operation(int i) = 0;
  // Call once all are complete; afterwards the bucket's memory holds the sum.
  virtual void finish() = 0;
};

// GradientCodec: encodes fp32 numbers as fewer bytes and decodes them. One object may serve many
// buckets; it keeps no state between calls. All tensors of a call are on one device; pure.
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
std::shared_ptr<const GradientCodec> make_codec(const config::CommunicationConfig& config);

}  // namespace coupler::strategy
