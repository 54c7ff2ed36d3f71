#include "context_parallel/context_attention.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "context_parallel/all_to_all_attention.h"
#include "context_parallel/ring_attention.h"

namespace coupler::context_parallel {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, fmt::format("attention within context_parallel: {}", what),
              {.subject = "context_parallel", .hint = hint});
}

// Of a mask that modules make of the tokens they see: false for none, true for causal. Unset if it
// is neither. Floats are added to scores.
std::optional<bool> causality_of(const at::Tensor& mask, int64_t tokens) {
  if (mask.dim() < 2 || mask.size(-1) != tokens || mask.size(-2) != tokens) return std::nullopt;
  at::Tensor seen;
  if (mask.scalar_type() == at::kBool) {
    seen = mask;
  } else {
    // Masks in 16 bits, and those of transformers, have the type's smallest number for minus
    // infinity.
    constexpr double kHidden = -1e4;
    const at::Tensor hidden = mask.lt(kHidden);
    if (!mask.masked_fill(hidden, 0).eq(0).all().item<bool>()) return std::nullopt;
    seen = hidden.logical_not();
  }
  if (seen.all().item<bool>()) return false;
  const at::Tensor causal = at::ones({tokens, tokens}, seen.options().dtype(at::kBool)).tril_();
  return seen.eq(causal).all().item<bool>() ? std::optional(true) : std::nullopt;
}

// The last mask that this thread looked at: layers share one.
bool is_causal_mask(const at::Tensor& mask, int64_t tokens) {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Last {
    Weak mask{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    int64_t version = 0;
    bool causal = false;
  };
  static thread_local Last last;
  const bool versions = !mask.is_inference();
  if (versions && last.mask.lock().get() == mask.unsafeGetTensorImpl() &&
      last.version == mask._version())
    return last.causal;
  const at::NoGradGuard no_grad;
  const auto causality = causality_of(mask.detach(), tokens);
  if (!causality) {
    refuse(
        fmt::format("its mask of [{}] is neither causal nor empty", fmt::join(mask.sizes(), ", ")),
        "a rank has only its own tokens, so a mask of all would be needed: mask padding in the "
        "loss, and let attention be causal (is_causal)");
  }
  if (versions) last = {Weak(mask.getIntrusivePtr()), mask._version(), *causality};
  return *causality;
}

}  // namespace

at::Tensor ContextAttention::attend(const tensors::AttentionCall& call) {
  if (call.dropout > 0) {
    refuse(fmt::format("dropout of {}", call.dropout),
           "set the dropout of attention to 0; that of other layers may stay");
  }
  const int64_t tokens = call.query.size(-2);
  if (call.query.dim() != 4 || call.key.size(-2) != tokens) {
    refuse(fmt::format("queries of [{}] and keys of [{}]", fmt::join(call.query.sizes(), ", "),
                       fmt::join(call.key.sizes(), ", ")),
           "both are [batch, heads, tokens, size] of the same sequence, which is divided; leave "
           "caches and other sequences out of the scope");
  }
  const bool causal = call.causal || (call.mask && is_causal_mask(*call.mask, tokens));
  const double scale = call.scale.value_or(1 / std::sqrt(static_cast<double>(call.query.size(-1))));
  return method_ == Method::kRing
             ? ring_attention(call.query, call.key, call.value, causal, scale, group_)
             : all_to_all_attention(call.query, call.key, call.value, causal, scale, group_);
}

}  // namespace coupler::context_parallel
