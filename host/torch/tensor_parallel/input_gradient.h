// InputGradient: the gradient of an input that divided layers share. Each rank's layers compute a
// part; the sum of the ranks' starts as soon as the last layer has given its part, so that it is
// under way while that layer computes the gradient of its weight.
//
// The thread of forward, then that of backward. Collective over the group.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>

#include "tensor_parallel/pending_exchange.h"

namespace coupler::tensor_parallel {

class InputGradient : public torch::CustomClassHolder {
 public:
  // tokens: the dimension along which each rank gets its own part of the sum; empty: all of it.
  InputGradient(Group group, std::optional<int64_t> tokens);

  // In forward: one more layer takes the input; and that layer's backward calls give().
  void take() { ++takers_; }
  void promise() { ++givers_; }

  // A layer's part, which becomes ours. Returns what the layer hands to autograd: nothing, unless
  // the parts of other layers, of which this knows nothing, come that way.
  at::Tensor give(const at::Tensor& part);

  // When every layer's backward has run. others: the sum of what came by way of autograd, or
  // undefined. The gradient of this rank's input; undefined if no layer had a part.
  at::Tensor finish(const at::Tensor& others);

  void release_resources() override;  // by its last owner, if weak pointers remain

 private:
  void begin_backward();
  PendingExchange start(const at::Tensor& sum) const;

  Group group_;
  const std::optional<int64_t> tokens_;
  int takers_ = 0, givers_ = 0;

  // Of the backward that runs.
  int backward_ = -1;  // its number
  int given_ = 0;
  at::Tensor sum_;
  std::optional<PendingExchange> pending_;
};

using InputGradientPtr = c10::intrusive_ptr<InputGradient>;

}  // namespace coupler::tensor_parallel
