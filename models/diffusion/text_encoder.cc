#include <ATen/ops/arange.h>
#include <coupler/error.h>
#include <coupler/text_to_image.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include "base/text.h"
#include "diffusion/parts.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler::diffusion {
namespace {

struct Options {
  explicit Options(const JsonObject& keys)
      : vocabulary(keys.size("vocab_size", 49408)),
        positions(keys.size("max_position_embeddings", 77)),
        width(keys.size("hidden_size", 512)),
        inner(keys.size("intermediate_size", 2048)),
        layers(keys.size("num_hidden_layers", 12)),
        heads(keys.size("num_attention_heads", 8)),
        epsilon(keys.number("layer_norm_eps", 1e-5)),
        activation(activation_of(keys, "hidden_act", "quick_gelu")) {
    const std::string type = keys.text("model_type");
    if (type != "clip_text_model")
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: architecture '{}' is not supported as a text encoder; "
                      "supported: clip_text_model",
                      keys.where(), for_message(type)),
          {.subject = "model_type", .hint = "use the text encoder of Stable Diffusion 1 or 2"});
    if (width % heads != 0)
      keys.refuse("num_attention_heads", "does not divide 'hidden_size'",
                  "use the config.json of a CLIPTextModel");
  }
  int64_t vocabulary, positions, width, inner, layers, heads;
  double epsilon;
  Activation activation;
};

struct ClipAttentionImpl : torch::nn::Module {
  explicit ClipAttentionImpl(const Options& o) : heads(o.heads) {
    k_proj = register_module("k_proj", linear(o.width, o.width, /*bias=*/true));
    v_proj = register_module("v_proj", linear(o.width, o.width, /*bias=*/true));
    q_proj = register_module("q_proj", linear(o.width, o.width, /*bias=*/true));
    out_proj = register_module("out_proj", linear(o.width, o.width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x) {
    return out_proj->forward(attend_in_heads(q_proj->forward(x), k_proj->forward(x),
                                             v_proj->forward(x), heads, /*mask=*/{},
                                             /*causal=*/true));
  }
  int64_t heads;
  torch::nn::Linear k_proj{nullptr}, v_proj{nullptr}, q_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(ClipAttention);

struct ClipLayerImpl : torch::nn::Module {
  explicit ClipLayerImpl(const Options& o) : activation(o.activation) {
    attention = register_module("self_attn", ClipAttention(o));
    norm1 = register_module("layer_norm1", layer_norm(o.width, o.epsilon));
    PartsOf mlp = register_module("mlp", PartsOf());
    fc1 = mlp->add("fc1", linear(o.width, o.inner, /*bias=*/true));
    fc2 = mlp->add("fc2", linear(o.inner, o.width, /*bias=*/true));
    norm2 = register_module("layer_norm2", layer_norm(o.width, o.epsilon));
  }
  at::Tensor forward(at::Tensor x) {
    x = attention->forward(norm1->forward(x)).add_(x);
    return fc2->forward(activation(fc1->forward(norm2->forward(x)))).add_(x);
  }
  Activation activation;
  ClipAttention attention{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(ClipLayer);

}  // namespace

struct TextEncoder::Parts {
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<ClipLayer> layers;
  torch::nn::LayerNorm norm{nullptr};
};

TextEncoder::TextEncoder(const ModelConfig& config)
    : Module("CLIPTextModel"), parts_(std::make_shared<Parts>()) {
  const Options o(config.keys());
  width_ = o.width;
  positions_ = o.positions;
  vocabulary_ = o.vocabulary;
  PartsOf model = register_module("text_model", PartsOf());
  PartsOf embeddings = model->add("embeddings", PartsOf());
  parts_->tokens = embeddings->add("token_embedding", torch::nn::Embedding(o.vocabulary, o.width));
  parts_->positions =
      embeddings->add("position_embedding", torch::nn::Embedding(o.positions, o.width));
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < o.layers; ++i) {
    parts_->layers.emplace_back(o);
    layers->push_back(parts_->layers.back());
  }
  model->add("encoder", PartsOf())->add("layers", layers);
  parts_->norm = model->add("final_layer_norm", layer_norm(o.width, o.epsilon));
}

TextEncoder::~TextEncoder() = default;

at::Tensor TextEncoder::forward(const at::Tensor& tokens) {
  const int64_t count = tokens.size(1);
  if (count > positions_)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens exceed the text encoder's limit of {}", count, positions_),
                {.subject = "tokens", .hint = "shorten the text"});
  at::Tensor x = parts_->tokens->forward(tokens);
  x.add_(parts_->positions->forward(at::arange(count, tokens.options())));
  for (ClipLayer& layer : parts_->layers) x = layer->forward(x);
  return parts_->norm->forward(x);
}

// transformers 5 omits the prefix; older versions also stored position_ids.
std::string text_encoder_checkpoint_name(const std::string& name) {
  if (name.ends_with("position_ids")) return "";
  return name.starts_with("text_model.") ? name : "text_model." + name;
}

}  // namespace coupler::diffusion
