// Scaled dot-product attention of unmodified modules, computed in another way while a scope says
// so: with sequences divided over ranks, each rank has a part of the tokens, and attention needs
// those of the others. Attention of a rank's own heads draws its own numbers for dropout
// (divided_values.h). [any-thread]; the replacement is the calling thread's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>

namespace coupler::tensors {

// The arguments of at::scaled_dot_product_attention. query: [batch, heads, tokens, size]; key and
// value likewise, of fewer heads if groups of query heads share one.
struct AttentionCall {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale;
  bool grouped_heads = false;
};

class AttentionReplacement {
 public:
  AttentionReplacement() = default;
  virtual ~AttentionReplacement() = default;
  AttentionReplacement(const AttentionReplacement&) = delete;
  AttentionReplacement& operator=(const AttentionReplacement&) = delete;

  // Its operations, and the calls of attention that it makes, are LibTorch's.
  virtual at::Tensor attend(const AttentionCall& call) = 0;
};

// Null: LibTorch's. Returns the previous one.
std::shared_ptr<AttentionReplacement> replace_attention(
    std::shared_ptr<AttentionReplacement> replacement);
std::shared_ptr<AttentionReplacement> replaced_attention();

// Whether this is attention, which the calling thread computes in another way or with own draws.
bool is_replaced_attention(const c10::OperatorHandle& op);

// While it lives, the calling thread computes attention as it did when this replacement was taken.
class AttentionScope {
 public:
  explicit AttentionScope(std::shared_ptr<AttentionReplacement> replacement);
  ~AttentionScope();
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;

 private:
  std::shared_ptr<AttentionReplacement> before_;
};

}  // namespace coupler::tensors
