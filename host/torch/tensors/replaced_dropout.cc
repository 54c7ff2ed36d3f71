#include "tensors/replaced_dropout.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensors/autocast_state.h"
#include "tensors/divided_values.h"

namespace coupler::tensors {
namespace {

thread_local std::shared_ptr<const PartOfTokens> part_now;

// Whether dropout draws anything, here instead of in the code that records it.
bool draws_here(double p, bool train) { return train && p > 0 && p < 1 && !goes_to_recorder(); }

bool is_part(const at::Tensor& input) {
  return part_now != nullptr && input.dim() == 3 && input.size(part_now->dim) == part_now->tokens;
}

// This rank's part of what at::dropout multiplies all tokens by.
at::Tensor factors_of_part(const at::Tensor& input, double p) {
  const PartOfTokens& part = *part_now;
  std::vector<int64_t> all = input.sizes().vec();
  all[static_cast<size_t>(part.dim)] *= part.ranks;
  const at::Tensor kept = at::empty(all, input.options().requires_grad(false)).bernoulli_(1 - p);
  return kept.narrow(part.dim, part.tokens * part.rank, part.tokens).div(1 - p);
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard below(kReplacedOpsKey);
  const bool draws = draws_here(p, train);
  if (draws && is_part(input)) return input.mul(factors_of_part(input, p));
  std::optional<OwnDraws> own;
  if (draws && is_divided(input)) own.emplace(input.device());
  return at::dropout(input, p, train);
}

at::Tensor& dropout_in_place(at::Tensor& input, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard below(kReplacedOpsKey);
  const bool draws = draws_here(p, train);
  if (draws && is_part(input)) return input.mul_(factors_of_part(input, p));
  std::optional<OwnDraws> own;
  if (draws && is_divided(input)) own.emplace(input.device());
  return at::dropout_(input, p, train);
}

TORCH_LIBRARY_IMPL(aten, PreDispatch, library) {
  library.impl("dropout", &dropout);
  library.impl("dropout_", &dropout_in_place);
}

}  // namespace

std::shared_ptr<const PartOfTokens> set_part_of_tokens(std::shared_ptr<const PartOfTokens> part) {
  use_replaced_ops(ReplacedOps::kDropout, part != nullptr);
  return std::exchange(part_now, std::move(part));
}

std::shared_ptr<const PartOfTokens> part_of_tokens() { return part_now; }

bool is_replaced_dropout(const c10::OperatorHandle& op) {
  if (part_now == nullptr && divided_values() == nullptr) return false;
  const std::string& name = op.schema().name();
  return name == "aten::dropout" || name == "aten::dropout_";
}

PartOfTokensScope::PartOfTokensScope(std::shared_ptr<const PartOfTokens> part)
    : before_(set_part_of_tokens(std::move(part))) {}
PartOfTokensScope::~PartOfTokensScope() { set_part_of_tokens(std::move(before_)); }

}  // namespace coupler::tensors
