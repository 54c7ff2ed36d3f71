#include "nets/layers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <coupler/context_parallel.h>
#include <coupler/error.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <tuple>

#include "base/text.h"
#include "json_file.h"

namespace coupler {
namespace {

// Llama 3.1's scaling: divides low frequencies, keeps high ones, and interpolates in between.
at::Tensor stretched(const at::Tensor& frequencies, const RotaryBase& base) {
  const at::Tensor lengths = frequencies.reciprocal().mul(2 * std::numbers::pi);
  const double original = base.original_positions;
  const at::Tensor smooth =
      lengths.reciprocal().mul(original).sub(base.low).div(base.high - base.low);
  const at::Tensor between =
      frequencies.mul(smooth.neg().add(1.0)).div(base.factor).add(frequencies.mul(smooth));
  const at::Tensor slow =
      at::where(lengths.gt(original / base.low), frequencies.div(base.factor), between);
  return at::where(lengths.lt(original / base.high), frequencies, slow);
}

// Which of the keys from `first` on each token sees: bool, [batch or 1, 1, tokens, keys]. window:
// as in AttentionOptions.
at::Tensor mask_of(const AttentionPass& pass, int64_t first, int64_t window) {
  const int64_t all = pass.seen + pass.tokens;
  const at::TensorOptions whole = pass.positions.options();
  const at::Tensor keys = at::arange(first, all, whole);
  const at::Tensor queries = at::arange(pass.seen, all, whole).unsqueeze(1);
  at::Tensor mask = keys.le(queries);
  if (window > 0) mask = mask.logical_and(keys.gt(queries.sub(window)));
  if (!pass.padding.defined()) return mask.unsqueeze(0).unsqueeze(0);
  // A padding token sees itself, so that every row of scores has a value.
  const at::Tensor text = keys.unsqueeze(0).ge(pass.padding).unsqueeze(1);  // [batch, 1, keys]
  return text.logical_and(mask).logical_or(keys.eq(queries)).unsqueeze(1);
}

// As scaled_dot_product_attention, which cannot cap scores.
at::Tensor attend_capped(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, const AttentionOptions& options) {
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).mul(scale);
  scores = scores.div(options.cap).tanh().mul(options.cap);
  if (mask)
    scores = scores.masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1, at::kFloat).to(query.scalar_type()), value);
}

}  // namespace

HeadImpl::HeadImpl(int64_t in, int64_t out, bool bias, const at::Tensor& tied) : Module("Head") {
  const bool own = !tied.defined();
  weight_ = register_parameter("weight", own ? at::empty({out, in}) : tied);
  if (own) torch::nn::init::normal_(weight_, 0.0, 0.02);
  if (bias) bias_ = register_parameter("bias", at::zeros({out}));
}

at::Tensor HeadImpl::forward(const at::Tensor& x) { return at::linear(x, weight_, bias_); }

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

torch::nn::LayerNorm layer_norm(int64_t width, double epsilon) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(epsilon));
}

Activation activation_of(const JsonObject& config, const char* key, const std::string& otherwise) {
  const std::string name = config.text(key, otherwise);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  if (name == "quick_gelu")
    return [](const at::Tensor& x) { return x.mul(at::sigmoid(x.mul(1.702))); };
  if (name == "gelu") return [](const at::Tensor& x) { return at::gelu(x); };
  if (name == "silu" || name == "swish") return [](const at::Tensor& x) { return at::silu(x); };
  if (name == "relu") return [](const at::Tensor& x) { return at::relu(x); };
  throw Error(
      ErrorCode::kUnsupported,
      config.where() + ": activation '" + for_message(name) + "' is not supported",
      {.subject = key, .hint = "use gelu_new, gelu_pytorch_tanh, quick_gelu, gelu, silu or relu"});
}

KeyValueCache::KeyValueCache(at::Tensor padding, int64_t room)
    : padding_(std::move(padding)), capacity_(room) {}

std::pair<at::Tensor, at::Tensor> KeyValueCache::extend(size_t layer, const at::Tensor& key,
                                                        const at::Tensor& value) {
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  Layer& own = layers_[layer];
  const int64_t tokens = key.size(2), all = length_ + tokens;
  if (!own.key.defined() || own.key.size(2) < all) {
    capacity_ = std::max(all, own.key.defined() ? 2 * own.key.size(2) : capacity_);
    const auto grown = [&](const at::Tensor& before, const at::Tensor& like) {
      at::Tensor memory =
          at::empty({like.size(0), like.size(1), capacity_, like.size(3)}, like.options());
      if (before.defined()) memory.narrow(2, 0, length_).copy_(before.narrow(2, 0, length_));
      return memory;
    };
    own = {grown(own.key, key), grown(own.value, value)};
  }
  own.key.narrow(2, length_, tokens).copy_(key);
  own.value.narrow(2, length_, tokens).copy_(value);
  return {own.key.narrow(2, 0, all), own.value.narrow(2, 0, all)};
}

AttentionPass begin_pass(const at::Tensor& tokens, KeyValueCache* cache, int parts) {
  AttentionPass pass;
  pass.cache = cache;
  pass.seen = cache == nullptr ? 0 : cache->length();
  pass.tokens = tokens.size(1) * parts;
  pass.positions = context_positions(pass.tokens, tokens.device()).add_(pass.seen);
  if (cache != nullptr && cache->padding().defined()) {
    pass.padding = cache->padding().to(tokens.device()).unsqueeze(1);
    pass.positions = pass.positions.sub(pass.padding).clamp_min(0);
  }
  return pass;
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

at::Tensor attend_in_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           int64_t heads, const std::optional<at::Tensor>& mask, bool causal) {
  const at::Tensor seen = at::scaled_dot_product_attention(
      split_heads(query, heads), split_heads(key, heads), split_heads(value, heads), mask,
      /*dropout_p=*/0.0, causal);
  return seen.transpose(1, 2).flatten(2);
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  AttentionPass& pass, size_t layer, const AttentionOptions& options) {
  at::Tensor keys = key, values = value;
  if (pass.cache != nullptr) std::tie(keys, values) = pass.cache->extend(layer, key, value);
  const int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2),
                size = query.size(3), groups = heads / keys.size(1), all = keys.size(2);
  const int64_t window = options.window < all ? options.window : 0;
  // The keys before are outside of every token's window.
  const int64_t first = window > 0 ? std::max<int64_t>(pass.seen - window + 1, 0) : 0;
  keys = keys.narrow(2, first, all - first);
  values = values.narrow(2, first, all - first);
  const bool capped = options.cap > 0;
  const bool causal = tokens > 1 && pass.seen == 0 && window == 0 && !capped;
  std::optional<at::Tensor> mask;
  if (pass.padding.defined() || (tokens > 1 && !causal)) {
    at::Tensor& shared = pass.masks[window];
    if (!shared.defined()) shared = mask_of(pass, first, window);
    mask = shared.to(query.device());
  }
  at::Tensor asked = query;
  const bool together = groups > 1 && tokens == 1;
  if (together) {
    // One token: the query heads that share a key head can be treated as tokens.
    asked = query.reshape({batch, keys.size(1), groups, size});
  } else if (groups > 1) {
    keys = keys.repeat_interleave(groups, 1);
    values = values.repeat_interleave(groups, 1);
  }
  const at::Tensor found =
      capped ? attend_capped(asked, keys, values, mask, options)
             : at::scaled_dot_product_attention(asked, keys, values, mask, /*dropout_p=*/0.0,
                                                causal && !mask, options.scale);
  if (together) return found.reshape({batch, 1, heads * size});
  return found.transpose(1, 2).reshape({batch, tokens, heads * size});
}

RotaryBase rotary_base_of(const std::optional<JsonObject>& rope, double base) {
  RotaryBase result{.base = rope ? rope->number("rope_theta", base) : base};
  const std::string type =
      rope ? rope->text("rope_type", rope->text("type", "default")) : "default";
  if (type == "default") return result;
  if (type != "linear" && type != "llama3")
    throw Error(ErrorCode::kUnsupported,
                rope->where() + ": rope_type '" + for_message(type) + "' is not supported",
                {.subject = "rope_type", .hint = "use default, linear or llama3"});
  result.factor = rope->number("factor");
  if (type == "llama3") {
    result.low = rope->number("low_freq_factor");
    result.high = rope->number("high_freq_factor");
    result.original_positions = rope->number("original_max_position_embeddings");
  }
  return result;
}

at::Tensor rotary_frequencies(int64_t size, const RotaryBase& base) {
  const at::Tensor exponents = at::arange(0, size, 2, at::kFloat).div(double(size));
  const at::Tensor frequencies = at::pow(base.base, exponents).reciprocal();
  if (base.original_positions > 0) return stretched(frequencies, base);
  return base.factor == 1 ? frequencies : frequencies.div(base.factor);
}

RotaryEmbedding::RotaryEmbedding(const at::Tensor& positions, const at::Tensor& frequencies,
                                 RotaryStyle style, at::ScalarType type)
    : style_(style) {
  const at::Tensor angles =
      positions.to(at::kFloat)
          .unsqueeze(-1)
          .mul(frequencies.to(positions.device()));  // [batch?, tokens, size / 2]
  at::Tensor twice =
      style == RotaryStyle::kHalf ? at::cat({angles, angles}, -1) : angles.repeat_interleave(2, -1);
  if (twice.dim() == 2) twice = twice.unsqueeze(0);
  twice = twice.unsqueeze(1);
  cosine_ = twice.cos().to(type);
  sine_ = twice.sin().to(type);
}

at::Tensor RotaryEmbedding::rotate(const at::Tensor& x) const {
  const int64_t size = cosine_.size(-1), rest = x.size(-1) - size;
  const at::Tensor part = rest == 0 ? x : x.narrow(-1, 0, size);
  at::Tensor other;
  if (style_ == RotaryStyle::kHalf) {
    other = at::cat({part.narrow(-1, size / 2, size / 2).neg(), part.narrow(-1, 0, size / 2)}, -1);
  } else {
    other =
        at::stack({part.slice(-1, 1, size, 2).neg(), part.slice(-1, 0, size, 2)}, -1).flatten(-2);
  }
  at::Tensor result = part.mul(cosine_.to(x.device())).addcmul_(other, sine_.to(x.device()));
  return rest == 0 ? result : at::cat({result, x.narrow(-1, size, rest)}, -1);
}

}  // namespace coupler
