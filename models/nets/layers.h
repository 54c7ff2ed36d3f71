// What architectures are made of: small modules, attention with a key-value cache, and rotary
// positions. Used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/language_model.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace coupler {

class JsonObject;

// y = x Wᵀ (+ b) with W of shape [out, in], which may be tied to another module's embeddings.
class HeadImpl : public torch::nn::Module {
 public:
  HeadImpl(int64_t in, int64_t out, bool bias, const at::Tensor& tied = {});
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Head);

// A container module whose children have the names that checkpoints use: "transformer", "0", "net".
struct PartsOfImpl : torch::nn::Module {
  PartsOfImpl() : Module("PartsOf") {}
  template <class Holder>
  Holder add(const std::string& name, Holder part) {
    return register_module(name, std::move(part));
  }
};
TORCH_MODULE(PartsOf);

torch::nn::Linear linear(int64_t in, int64_t out, bool bias);
torch::nn::LayerNorm layer_norm(int64_t width, double epsilon);

// "gelu_new", "silu", … Throws Error(kUnsupported) with the key, the value and the supported ones.
using Activation = at::Tensor (*)(const at::Tensor&);
Activation activation_of(const JsonObject& config, const char* key, const std::string& otherwise);

// Rotary positions: the sines and cosines of a forward pass, and the two ways to rotate by them.

// LLaMA's frequencies, float [size / 2], from config.json's "rope_parameters" (or the older
// "rope_scaling" and "rope_theta"). Throws Error(kUnsupported) for unsupported kinds.
at::Tensor rotary_frequencies(const JsonObject& config, int64_t size);
// Without scaling: base^(-2i / size).
at::Tensor rotary_frequencies(int64_t size, double base);

enum class RotaryStyle { kInterleaved, kHalf };  // pairs of coordinates: GPT-J's, LLaMA's

class RotaryEmbedding {
 public:
  // positions: [tokens] or [batch, tokens].
  RotaryEmbedding(const at::Tensor& positions, const at::Tensor& frequencies, RotaryStyle style,
                  at::ScalarType type);
  // x: [batch, heads, tokens, size]; rotates the first coordinates, twice as many as there are
  // frequencies.
  at::Tensor rotate(const at::Tensor& x) const;

 private:
  RotaryStyle style_;
  at::Tensor cosine_, sine_;  // [batch or 1, 1, tokens, rotated]
};

// Attention, and the state that all layers of a forward pass share.

struct AttentionPass {
  KeyValueCache* cache = nullptr;  // null: nothing is cached
  at::Tensor positions;            // [tokens], or [batch, tokens] if rows are padded
  at::Tensor mask;                 // [batch or 1, 1, tokens, all]; undefined: none is needed
  bool causal = false;             // without a mask: tokens attend to themselves and earlier ones
  std::optional<RotaryEmbedding> rope;  // of models that have one, once a block has used it
};

AttentionPass begin_pass(const at::Tensor& tokens, KeyValueCache* cache);

// [batch, tokens, heads × size] to [batch, heads, tokens, size].
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

// Attention in this many heads, without a cache. query, key, value and the result: [batch, tokens,
// width]. causal: tokens attend to themselves and earlier ones.
at::Tensor attend_in_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           int64_t heads, const std::optional<at::Tensor>& mask = {},
                           bool causal = false);

// query: [batch, heads, tokens, size]; key and value likewise, with as many heads or fewer, each
// shared by several query heads. Returns [batch, tokens, heads × size].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionPass& pass, size_t layer);

}  // namespace coupler
