#include "nets/decoder.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <sstream>
#include <utility>

namespace coupler {
namespace {

using Description = DecoderDescription;
// A registered module's forward; empty if the model has no such module.
using Layer = std::function<at::Tensor(const at::Tensor&)>;

// y = x W + b with W of shape [in, out].
struct Conv1DImpl : torch::nn::Module {
  Conv1DImpl(int64_t in, int64_t out, bool biased) {
    weight = register_parameter("weight", at::empty({in, out}));
    torch::nn::init::normal_(weight, 0.0, 0.02);
    if (biased) bias = register_parameter("bias", at::zeros({out}));
  }
  at::Tensor forward(const at::Tensor& x) {
    // Rows would hide which dimension the layer gathers or divides.
    if (sequence_ranks() > 1) return at::linear(x, weight.t(), bias);
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const at::Tensor y = bias.defined() ? at::addmm(bias, rows, weight) : rows.mm(weight);
    return y.view({x.size(0), x.size(1), -1});
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Conv1D);

// In float whatever the weights' type, as in transformers.
struct RMSNormImpl : torch::nn::Module {
  RMSNormImpl(const std::string& name, int64_t width, double epsilon_of, bool offset_of)
      : Module(name), epsilon(epsilon_of), offset(offset_of) {
    weight = register_parameter("weight", offset ? at::zeros({width}) : at::ones({width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor whole = x.to(at::kFloat);
    const at::Tensor scaled = whole.mul(whole.square().mean(-1, true).add_(epsilon).rsqrt_());
    if (offset) return scaled.mul(weight.to(at::kFloat).add(1.0)).to(x.scalar_type());
    return weight * scaled.to(x.scalar_type());
  }
  double epsilon;
  bool offset;
  at::Tensor weight;
};
TORCH_MODULE(RMSNorm);

template <class Holder>
Layer registered(torch::nn::Module& in, const std::string& name, const Holder& module) {
  in.register_module(name, module);
  return [layer = module.ptr()](const at::Tensor& x) { return layer->forward(x); };
}

Layer add_linear(const Description& d, torch::nn::Module& in, const std::string& name,
                 int64_t inputs, int64_t outputs, bool bias) {
  if (name.empty()) return {};
  if (d.transposed) return registered(in, name, Conv1D(inputs, outputs, bias));
  return registered(in, name, linear(inputs, outputs, bias));
}

Layer add_norm(const Description& d, torch::nn::Module& in, const std::string& name,
               int64_t width) {
  if (name.empty()) return {};
  if (d.norm == NormKind::kLayer)
    return registered(
        in, name,
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(d.epsilon).elementwise_affine(
            d.norm_weights)));
  return registered(
      in, name, RMSNorm(d.family + "RMSNorm", width, d.epsilon, d.norm == NormKind::kRmsOffset));
}

// `layer` of x, or x.
at::Tensor through(const Layer& layer, const at::Tensor& x) { return layer ? layer(x) : x; }

at::Tensor within(double cap, const at::Tensor& x) { return x.div(cap).tanh().mul(cap); }

struct DecoderAttentionImpl : torch::nn::Module {
  DecoderAttentionImpl(const Description& of, AttentionOptions of_layer)
      : Module(of.family + "Attention"), d(of), options(of_layer) {
    const DecoderNames& n = d.names;
    const int64_t queries = d.heads * d.head, keys = d.key_heads * d.head;
    if (n.fused.empty()) {
      query = add_linear(d, *this, n.query, d.width, queries, d.query_bias);
      key = add_linear(d, *this, n.key, d.width, keys, d.query_bias);
      value = add_linear(d, *this, n.value, d.width, keys, d.query_bias);
    } else {
      fused = add_linear(d, *this, n.fused, d.width, queries + 2 * keys, d.query_bias);
    }
    output = add_linear(d, *this, n.output, queries, d.width, d.output_bias);
    query_norm = add_norm(d, *this, n.query_norm, d.head);
    key_norm = add_norm(d, *this, n.key_norm, d.head);
  }

  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding* rope, AttentionPass& pass,
                     size_t layer) {
    auto [q, k, v] = projected(x);
    q = through(query_norm, q);
    k = through(key_norm, k);
    if (rope != nullptr) {
      // Queries and keys are rotated together.
      const int64_t queries = q.size(1), keys = k.size(1);
      const at::Tensor rotated = rope->rotate(at::cat({q, k}, 1));
      q = rotated.narrow(1, 0, queries);
      k = rotated.narrow(1, queries, keys);
    }
    return output(attend(q, k, v, pass, layer, options));
  }

  // Each [batch, heads, tokens, size], of the heads that this rank computes.
  std::array<at::Tensor, 3> projected(const at::Tensor& x) const {
    const auto heads_of = [this](const at::Tensor& y, int64_t kinds) {
      return split_heads(y, y.size(-1) / (d.head * kinds));
    };
    if (d.names.fused.empty())
      return {heads_of(query(x), 1), heads_of(key(x), 1), heads_of(value(x), 1)};
    const at::Tensor all = fused(x);
    if (d.names.fused_by_head) {
      const auto parts = heads_of(all, 3).chunk(3, -1);
      return {parts[0], parts[1], parts[2]};
    }
    const auto parts = all.chunk(3, -1);
    return {heads_of(parts[0], 1), heads_of(parts[1], 1), heads_of(parts[2], 1)};
  }

  const Description& d;
  AttentionOptions options;
  Layer query, key, value, fused, output, query_norm, key_norm;
};
TORCH_MODULE(DecoderAttention);

struct DecoderBlockImpl : torch::nn::Module {
  DecoderBlockImpl(const Description& of, size_t layer_of)
      : Module(of.block_class), d(of), layer(layer_of) {
    const DecoderNames& n = d.names;
    AttentionOptions options = d.attention;
    if (!windowed()) options.window = 0;
    attention_norm = add_norm(d, *this, n.attention_norm, d.width);
    attention = register_module(n.attention, DecoderAttention(d, options));
    after_attention = add_norm(d, *this, n.after_attention, d.width);
    mlp_norm = add_norm(d, *this, n.mlp_norm, d.width);
    torch::nn::Module* mlp_in = this;
    if (!n.mlp.empty()) mlp_in = register_module(n.mlp, PartsOf(d.family + "MLP")).get();
    gate = add_linear(d, *mlp_in, n.gate, d.width, d.inner, d.mlp_bias);
    up = add_linear(d, *mlp_in, n.up, d.width, d.inner, d.mlp_bias);
    down = add_linear(d, *mlp_in, n.down, d.inner, d.width, d.mlp_bias);
    after_mlp = add_norm(d, *this, n.after_mlp, d.width);
  }

  bool windowed() const { return layer < d.windowed.size() && d.windowed[layer]; }

  at::Tensor forward(const at::Tensor& x, const RotaryEmbedding* rope, AttentionPass& pass) {
    const bool norm_last = d.residual == Residual::kNormLast;
    const at::Tensor y = norm_last ? x : attention_norm(x);
    const at::Tensor change = through(after_attention, attention->forward(y, rope, pass, layer));
    if (d.residual == Residual::kParallel) return x + change + mlp(mlp_norm ? mlp_norm(x) : y);
    if (norm_last) {
      const at::Tensor attended = attention_norm(x + change);
      return mlp_norm(attended + mlp(attended));
    }
    const at::Tensor attended = x + change;
    return attended + through(after_mlp, mlp(mlp_norm(attended)));
  }

  at::Tensor mlp(const at::Tensor& x) const {
    return down(gate ? d.activation(gate(x)).mul(up(x)) : d.activation(up(x)));
  }

  const Description& d;
  size_t layer;
  DecoderAttention attention{nullptr};
  Layer attention_norm, after_attention, mlp_norm, gate, up, down, after_mlp;
};
TORCH_MODULE(DecoderBlock);

class DecoderModel : public LanguageModel {
 public:
  explicit DecoderModel(const Description& description)
      : LanguageModel(description.model_class, description.vocabulary, description.context),
        d(description),
        prefix_(d.names.base.substr(0, d.names.base.find('.')) + ".") {
    const DecoderNames& n = d.names;
    PartsOf body = container();
    torch::nn::EmbeddingOptions words(d.vocabulary, d.embedding_width);
    if (d.padding_token >= 0) words.padding_idx(d.padding_token);
    auto embedding = body->add(n.embedding, torch::nn::Embedding(words));
    PipelineLayer::Modules first = {embedding.ptr()};
    Layer positions, project_in;
    if (!n.positions.empty()) {
      const torch::nn::Embedding places(d.context + d.position_offset, d.width);
      positions = registered(*body, n.positions, places);
      first.push_back(places.ptr());
    }
    if (!n.project_in.empty()) {
      const auto projection = linear(d.embedding_width, d.width, /*bias=*/false);
      project_in = registered(*body, n.project_in, projection);
      first.push_back(projection.ptr());
    }
    add_part({n.base + "." + n.embedding, first,
              [this, embedding = embedding.ptr(), positions, project_in](const at::Tensor& tokens,
                                                                         AttentionPass& pass) {
                at::Tensor x = through(project_in, scaled(embedding->forward(tokens)));
                return positions ? x + positions(pass.positions.add(d.position_offset)) : x;
              }});
    auto blocks = body->add(n.layers, torch::nn::ModuleList());
    for (size_t layer = 0; layer < static_cast<size_t>(d.layers); ++layer) {
      DecoderBlock block(d, layer);
      blocks->push_back(block);
      add_part({n.base + "." + n.layers + "." + std::to_string(layer),
                {block.ptr()},
                [this, block = block.ptr()](const at::Tensor& x, AttentionPass& pass) {
                  return block->forward(x, rope_of(x, block->windowed(), pass), pass);
                }});
    }
    add_end(*body, embedding->weight);
  }

  at::Tensor logits(const at::Tensor& hidden) override {
    const at::Tensor scores = head_->forward(hidden);
    return d.logit_cap > 0 ? within(d.logit_cap, scores) : scores;
  }
  TensorPlan tensor_plan(int ranks) const override { return tensor_plan_of(d, ranks); }
  const char* block_class() const override { return d.block_class.c_str(); }
  const char* base_prefix() const override { return prefix_.c_str(); }
  const char* head_name() const override { return d.names.head.c_str(); }

 private:
  // "model.decoder" is a module in a module.
  PartsOf container() {
    std::istringstream path(d.names.base);
    PartsOf inner{nullptr};
    for (std::string name; std::getline(path, name, '.');)
      inner = inner.is_empty() ? register_module(name, PartsOf()) : inner->add(name, PartsOf());
    return inner;
  }

  // The norm and the head.
  void add_end(torch::nn::Module& body, const at::Tensor& embeddings) {
    const DecoderNames& n = d.names;
    PipelineLayer::Modules last;
    std::string name = n.head;
    const Layer norm = add_norm(d, body, n.final_norm, d.width);
    if (norm) {
      last.push_back(body.named_children()[n.final_norm]);
      name = n.base + "." + n.final_norm;
    }
    Layer project_out;
    if (!n.project_out.empty()) {
      const auto projection = linear(d.width, d.embedding_width, /*bias=*/false);
      project_out = registered(body, n.project_out, projection);
      last.push_back(projection.ptr());
    }
    head_ = register_module(n.head, Head(d.embedding_width, d.vocabulary, d.head_bias,
                                         d.tied ? embeddings : at::Tensor()));
    last.push_back(head_.ptr());
    add_part({name, last, [norm, project_out](const at::Tensor& x, AttentionPass&) {
                return through(project_out, through(norm, x));
              }});
  }

  at::Tensor scaled(const at::Tensor& x) const {
    return d.embedding_scale == 1 ? x : x.mul(at::scalar_tensor(d.embedding_scale, x.options()));
  }

  // Null if the model has no rotary positions.
  const RotaryEmbedding* rope_of(const at::Tensor& x, bool windowed, AttentionPass& pass) {
    if (d.rotary == 0) return nullptr;
    const bool own = windowed && d.window_rotary_base;
    at::Tensor& frequencies = own ? window_frequencies_ : frequencies_;
    // Created lazily: the model may be built under EmptyWeights.
    if (!frequencies.defined())
      frequencies = rotary_frequencies(d.rotary, own ? *d.window_rotary_base : d.rotary_base);
    auto& rope = own ? pass.window_rope : pass.rope;
    if (!rope) rope.emplace(pass.positions, frequencies, d.rotary_style, x.scalar_type());
    return &*rope;
  }

  const Description d;
  const std::string prefix_;
  at::Tensor frequencies_, window_frequencies_;
  Head head_{nullptr};
};

}  // namespace

TensorPlan tensor_plan_of(const DecoderDescription& d, int ranks) {
  const DecoderNames& n = d.names;
  const sharding::DecoderSizes sizes{
      .vocabulary = d.vocabulary, .head_size = d.head, .key_heads = d.key_heads};
  TensorPlan plan;
  for (const sharding::PlanRule& rule : sharding::plan_of_decoder(n, sizes, ranks))
    plan.push_back({rule.pattern, rule.style, rule.multiple});
  const auto add = [&](const std::string& in, std::initializer_list<const std::string*> names) {
    for (const std::string* name : names) {
      if (!name->empty()) plan.push_back({in + *name, "sequence"});
    }
  };
  add(n.base + ".", {&n.positions, &n.project_in, &n.project_out, &n.final_norm});
  add(n.base + "." + n.layers + ".*.",
      {&n.attention_norm, &n.mlp_norm, &n.after_attention, &n.after_mlp});
  return plan;
}

std::shared_ptr<LanguageModel> make_decoder_model(const DecoderDescription& description) {
  return std::make_shared<DecoderModel>(description);
}

}  // namespace coupler
