#include "nets/bert.h"

#include <ATen/ops/arange.h>
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
    return attend_in_heads(query->forward(x), key->forward(x), value->forward(x), heads, mask);
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

struct BertLayerImpl : torch::nn::Module {
  explicit BertLayerImpl(const BertOptions& o) : activation(o.activation) {
    PartsOf attention = register_module("attention", PartsOf());
    self = attention->add("self", BertSelfAttention(o));
    after_self = attention->add("output", BertOutput(o.width, o));
    intermediate = register_module("intermediate", PartsOf())
                       ->add("dense", linear(o.width, o.inner, /*bias=*/true));
    output = register_module("output", BertOutput(o.inner, o));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor attended = after_self->forward(self->forward(x, mask), x);
    return output->forward(activation(intermediate->forward(attended)), attended);
  }
  Activation activation;
  BertSelfAttention self{nullptr};
  torch::nn::Linear intermediate{nullptr};
  BertOutput after_self{nullptr}, output{nullptr};
};
TORCH_MODULE(BertLayer);

}  // namespace

struct BertParts {
  BertEmbeddings embeddings{nullptr};
  std::vector<BertLayer> layers;
};

BertModel::BertModel(const ModelConfig& config)
    : Module("BertModel"), parts_(std::make_shared<BertParts>()) {
  const BertOptions o(config.keys());
  width_ = o.width;
  positions_ = o.positions;
  parts_->embeddings = register_module("embeddings", BertEmbeddings(o));
  auto layers = register_module("encoder", PartsOf())->add("layer", torch::nn::ModuleList());
  for (int64_t i = 0; i < o.layers; ++i) layers->push_back(parts_->layers.emplace_back(o));
}

at::Tensor BertModel::forward(const at::Tensor& tokens, const at::Tensor& text) {
  at::Tensor x = parts_->embeddings->forward(tokens);
  const at::Tensor mask = text.unsqueeze(1).unsqueeze(1).to(x.device());
  for (BertLayer& layer : parts_->layers) x = layer->forward(x, mask);
  return x;
}

std::string bert_checkpoint_name(const std::string& name) {
  const std::string own = name.starts_with("bert.") ? name.substr(5) : name;
  const bool ours = own.starts_with("embeddings.") || own.starts_with("encoder.");
  return ours && own != "embeddings.position_ids" ? own : "";
}

}  // namespace coupler
