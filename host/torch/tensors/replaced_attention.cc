#include "tensors/replaced_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "tensors/autocast_state.h"
#include "tensors/divided_values.h"

namespace coupler::tensors {
namespace {

thread_local std::shared_ptr<AttentionReplacement> replacement_now;

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool causal,
                     std::optional<double> scale, bool grouped_heads) {
  const c10::impl::ExcludeDispatchKeyGuard below(kReplacedOpsKey);
  const auto replacement = replacement_now;
  if (replacement == nullptr || goes_to_recorder()) {
    std::optional<OwnDraws> own;
    if (dropout > 0 && divided_values() != nullptr && !goes_to_recorder())
      own.emplace(query.device());
    return at::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale,
                                            grouped_heads);
  }
  const AttentionScope torchs(nullptr);
  const bool masked = mask && mask->defined();
  return replacement->attend(
      {query, key, value, masked ? mask : std::nullopt, dropout, causal, scale, grouped_heads});
}

TORCH_LIBRARY_IMPL(aten, PreDispatch, library) {
  library.impl("scaled_dot_product_attention", &attention);
}

}  // namespace

std::shared_ptr<AttentionReplacement> replace_attention(
    std::shared_ptr<AttentionReplacement> replacement) {
  use_replaced_ops(ReplacedOps::kAttention, replacement != nullptr);
  return std::exchange(replacement_now, std::move(replacement));
}

std::shared_ptr<AttentionReplacement> replaced_attention() { return replacement_now; }

bool is_replaced_attention(const c10::OperatorHandle& op) {
  return (replacement_now != nullptr || divided_values() != nullptr) &&
         op.schema().name() == "aten::scaled_dot_product_attention";
}

AttentionScope::AttentionScope(std::shared_ptr<AttentionReplacement> replacement)
    : before_(replace_attention(std::move(replacement))) {}
AttentionScope::~AttentionScope() { replace_attention(std::move(before_)); }

}  // namespace coupler::tensors
