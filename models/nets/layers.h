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
#include <map>
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
  explicit PartsOfImpl(const std::string& name = "PartsOf") : Module(name) {}
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

// How positions become angles: base^(-2i / size), and Llama 3.1's or a linear scaling of that.
struct RotaryBase {
  double base = 10000, factor = 1;
  // Of Llama 3.1, which divides low frequencies only; 0 positions: divides all of them.
  double low = 0, high = 0, original_positions = 0;
};
// rope: config.json's "rope_parameters" or the older "rope_scaling", if it has one. base: if that
// names none. Throws Error(kUnsupported) for unsupported kinds.
RotaryBase rotary_base_of(const std::optional<JsonObject>& rope, double base);
// float [size / 2].
at::Tensor rotary_frequencies(int64_t size, const RotaryBase& base);

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
  int64_t seen = 0, tokens = 0;    // processed before, and in this pass
  at::Tensor positions;            // [tokens], or [batch, tokens] if rows are padded
  at::Tensor padding;              // [batch, 1] leading padding tokens; undefined: none
  // Once a layer has used them: masks by window, and rotary positions, which layers with a window
  // may have of their own.
  std::map<int64_t, at::Tensor> masks;
  std::optional<RotaryEmbedding> rope, window_rope;
};

// parts: of how many ranks' tokens the sequences consist.
AttentionPass begin_pass(const at::Tensor& tokens, KeyValueCache* cache, int parts = 1);

// [batch, tokens, heads × size] to [batch, heads, tokens, size].
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

// Attention in this many heads, without a cache. query, key, value and the result: [batch, tokens,
// width]. causal: tokens attend to themselves and earlier ones.
at::Tensor attend_in_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           int64_t heads, const std::optional<at::Tensor>& mask = {},
                           bool causal = false);

// What distinguishes a layer's attention from the usual.
struct AttentionOptions {
  std::optional<double> scale;  // of scores; 1 / sqrt(size) if not set
  double cap = 0;               // scores stay within ±cap; 0: unbounded
  int64_t window = 0;           // tokens see themselves and the window - 1 before; 0: all before
};

// query: [batch, heads, tokens, size]; key and value likewise, with as many heads or fewer, each
// shared by several query heads. Returns [batch, tokens, heads × size].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  AttentionPass& pass, size_t layer, const AttentionOptions& options);

}  // namespace coupler
