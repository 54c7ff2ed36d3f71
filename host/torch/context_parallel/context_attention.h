// ContextAttention: attention of unmodified modules over sequences that a context group divides.
// Shared by the scopes and graphs that use it; see ring_attention.h for threads.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "context_parallel/sequence_order.h"
#include "tensors/replaced_attention.h"

namespace coupler::context_parallel {

class ContextAttention : public tensors::AttentionReplacement {
 public:
  enum class Method { kRing, kAllToAll };

  ContextAttention(Method method, std::shared_ptr<comm::Communicator> group)
      : method_(method), group_(std::move(group)) {}

  // Throws Error(kUnsupported) for what cannot be divided: a mask that is not causal, dropout,
  // queries of other sequences than the keys.
  at::Tensor attend(const tensors::AttentionCall& call) override;

  SequenceOrder order() const {
    return method_ == Method::kRing ? SequenceOrder::kBalanced : SequenceOrder::kInTurns;
  }
  const std::shared_ptr<comm::Communicator>& group() const { return group_; }

 private:
  const Method method_;
  const std::shared_ptr<comm::Communicator> group_;
};

}  // namespace coupler::context_parallel
