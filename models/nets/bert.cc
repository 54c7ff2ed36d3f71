#include "nets/bert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include "base/text.h"
#include "json_file.h"
#include "nets/layers.h"

namespace coupler {
namespace {

struct BertOptions {
  explicit BertOptions(const JsonObject& keys)
      : vocabulary(keys.size("vocab_size", 30522)),
        positions(keys.size("max_position_embeddings", 512)),
        width(keys.size("hidden_size", 768)),
        layers(keys.size("num_hidden_layers", 12)),
        heads(keys.size("num_attention_heads", 12)),
        inner(keys.size("intermediate_size", 3072)),
        types(keys.size("type_vocab_size", 2)),
        epsilon(keys.number("layer_norm_eps", 1e-12)),
        activation(activation_of(keys, "hidden_act", "gelu")) {
    const std::string type = keys.text("model_type");
    if (type != "bert")
      throw Error(ErrorCode::kUnsupported,
                  keys.where() + ": architecture '" + for_message(type) +
                      "' is not supported for embeddings; supported: bert",
                  {.subject = "model_type", .hint = "use a BERT sentence encoder"});
    if (keys.text("position_embedding_type", "absolute") != "absolute")
      throw Error(
          ErrorCode::kUnsupported, keys.where() + ": position_embedding_type must be 'absolute'",
          {.subject = "position_embedding_type", .hint = "use a BERT with absolute positions"});
    if (width % heads != 0)
      keys.refuse("num_attention_heads", "does not divide 'hidden_size'",
                  "use the config.json of a BERT model");
  }
  int64_t vocabulary, positions, width, layers, heads, inner, types;
  double epsilon;
  Activation activation;
};

struct BertEmbeddingsImpl : torch::nn::Module {
  explicit BertEmbeddingsImpl(const BertOptions& o) {
    word_embeddings =
        register_module("word_embeddings", torch::nn::Embedding(o.vocabulary, o.width));
    position_embeddings =
        register_module("position_embeddings", torch::nn::Embedding(o.positions, o.width));
    token_type_embeddings =
        register_module("token_type_embeddings", torch::nn::Embedding(o.types, o.width));
    norm = register_module("LayerNorm", layer_norm(o.width, o.epsilon));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::TensorOptions whole = tokens.options();
    const at::Tensor places = at::arange(tokens.size(1), whole);
    // All tokens of a sentence have the first type.
    const at::Tensor types = at::zeros({1}, whole);
    return norm->forward(word_embeddings->forward(tokens) + token_type_embeddings->forward(types) +
                         position_embeddings->forward(places));
  }
  torch::nn::Embedding word_embeddings{nullptr}, position_embeddings{nullptr},
      token_type_embeddings{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(BertEmbeddings);

struct BertSelfAttentionImpl : torch::nn::Module {
  explicit BertSelfAttentionImpl(const BertOptions& o) : heads(o.heads) {
    query = register_module("query", linear(o.width, o.width, /*bias=*/true));
    key = register_module("key", linear(o.width, o.width, /*bias=*/true));
    value = register_module("value", linear(o.width, o.width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor y = at::scaled_dot_product_attention(
        split_heads(query->forward(x), heads), split_heads(key->forward(x), heads),
        split_heads(value->forward(x), heads), mask);
    return y.transpose(1, 2).flatten(2);
  }
  int64_t heads;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
};
TORCH_MODULE(BertSelfAttention);

// A linear layer, and a norm of the sum of its output and the residual.
struct BertOutputImpl : torch::nn::Module {
  BertOutputImpl(int64_t in, const BertOptions& o) {
    dense = register_module("dense", linear(in, o.width, /*bias=*/true));
    norm = register_module("LayerNorm", layer_norm(o.width, o.epsilon));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& around) {
    return norm->forward(dense->forward(x) + around);
  }
  torch::nn::Linear dense{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(BertOutput);

struct BertAttentionImpl : torch::nn::Module {
  explicit BertAttentionImpl(const BertOptions& o) {
    self = register_module("self", BertSelfAttention(o));
    output = register_module("output", BertOutput(o.width, o));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return output->forward(self->forward(x, mask), x);
  }
  BertSelfAttention self{nullptr};
  BertOutput output{nullptr};
};
TORCH_MODULE(BertAttention);

struct BertIntermediateImpl : torch::nn::Module {
  explicit BertIntermediateImpl(const BertOptions& o) : activation(o.activation) {
    dense = register_module("dense", linear(o.width, o.inner, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x) { return activation(dense->forward(x)); }
  Activation activation;
  torch::nn::Linear dense{nullptr};
};
TORCH_MODULE(BertIntermediate);

struct BertLayerImpl : torch::nn::Module {
  explicit BertLayerImpl(const BertOptions& o) {
    attention = register_module("attention", BertAttention(o));
    intermediate = register_module("intermediate", BertIntermediate(o));
    output = register_module("output", BertOutput(o.inner, o));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor attended = attention->forward(x, mask);
    return output->forward(intermediate->forward(attended), attended);
  }
  BertAttention attention{nullptr};
  BertIntermediate intermediate{nullptr};
  BertOutput output{nullptr};
};
TORCH_MODULE(BertLayer);

struct BertEncoderImpl : torch::nn::Module {
  explicit BertEncoderImpl(const BertOptions& o) {
    for (int64_t i = 0; i < o.layers; ++i) layer->push_back(BertLayer(o));
    register_module("layer", layer);
  }
  torch::nn::ModuleList layer;
};
TORCH_MODULE(BertEncoder);

}  // namespace

struct BertParts {
  BertEmbeddings embeddings{nullptr};
  BertEncoder encoder{nullptr};
};

BertModel::BertModel(const ModelConfig& config)
    : Module("BertModel"), parts_(std::make_shared<BertParts>()) {
  const BertOptions o(config.keys());
  width_ = o.width;
  positions_ = o.positions;
  parts_->embeddings = register_module("embeddings", BertEmbeddings(o));
  parts_->encoder = register_module("encoder", BertEncoder(o));
}

at::Tensor BertModel::forward(const at::Tensor& tokens, const at::Tensor& text) {
  at::Tensor x = parts_->embeddings->forward(tokens);
  const at::Tensor mask = text.unsqueeze(1).unsqueeze(1).to(x.device());
  for (const auto& layer : *parts_->encoder->layer)
    x = layer->as<BertLayerImpl>()->forward(x, mask);
  return x;
}

std::string bert_checkpoint_name(const std::string& name) {
  const std::string own = name.starts_with("bert.") ? name.substr(5) : name;
  const bool ours = own.starts_with("embeddings.") || own.starts_with("encoder.");
  return ours && own != "embeddings.position_ids" ? own : "";
}

}  // namespace coupler
