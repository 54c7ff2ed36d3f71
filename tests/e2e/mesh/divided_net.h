// A small language model, written as anyone would, whose layers a tensor group can divide:
// attention with local_heads, an MLP, a head that shares the embedding's weight. In doubles, so
// that differences are only rounding.
#pragma once

#include <coupler/coupler.h>

#include <string>

inline constexpr int64_t kVocabulary = 16, kWidth = 8, kHeads = 4, kTokens = 8;

struct DividedBlockImpl : torch::nn::Module {
  explicit DividedBlockImpl(bool whole) : whole_heads(whole) {
    for (torch::nn::Linear* layer : {&q, &k, &v, &o}) *layer = torch::nn::Linear(kWidth, kWidth);
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("o", o);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head_norm = register_module(
        "head_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth / kHeads})));
    up = register_module("up", torch::nn::Linear(kWidth, 3 * kWidth));
    down = register_module("down", torch::nn::Linear(3 * kWidth, kWidth));
  }
  torch::Tensor heads(const torch::Tensor& x) const {
    const int64_t number = whole_heads ? kHeads : coupler::local_heads(kHeads);
    return x.view({x.size(0), x.size(1), number, -1}).transpose(1, 2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm->forward(x);
    const auto seen = torch::scaled_dot_product_attention(
        head_norm->forward(heads(q->forward(y))), heads(k->forward(y)), heads(v->forward(y)), {},
        0.0, /*is_causal=*/true);
    const torch::Tensor z = x + o->forward(seen.transpose(1, 2).flatten(2));
    return z + down->forward(torch::gelu(up->forward(z)));
  }
  bool whole_heads;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr}, head_norm{nullptr};
};
TORCH_MODULE(DividedBlock);

// A linear layer of a class of its own, whose weight is an embedding's.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const torch::Tensor& tied) {
    weight = register_parameter("weight", tied);
    bias = register_parameter("bias", torch::randn({tied.size(0)}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(TiedHead);

struct DividedNetImpl : torch::nn::Module, coupler::TensorParallelLayers {
  // head_style: "colwise_gather", or "vocab" for parallel_cross_entropy; "": the net is not
  // divided, although the process has a tensor group.
  explicit DividedNetImpl(const std::string& head_style = "colwise_gather") : head(head_style) {
    torch::manual_seed(11);
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    places = register_module("places", torch::nn::Embedding(kTokens, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(DividedBlock(head.empty()));
    out = register_module("out", TiedHead(tokens->weight));
    to(torch::kDouble);
  }
  coupler::TensorPlan tensor_plan(int) const override {
    return {{"tokens", "vocab"},
            {"out", head},
            {"blocks.*.q", "colwise", kWidth / kHeads},
            {"blocks.*.k", "colwise", kWidth / kHeads},
            {"blocks.*.v", "colwise", kWidth / kHeads},
            {"blocks.*.o", "rowwise"},
            {"blocks.*.head_norm", "sum_gradients"},
            {"blocks.*.up", "colwise"},
            {"blocks.*.down", "rowwise"},
            {"places", "sequence"},
            {"blocks.*.norm", "sequence"}};
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = tokens->forward(ids) +
                      places->forward(coupler::context_positions(ids.size(1), ids.device()));
    for (const auto& block : *blocks) x = block->as<DividedBlock>()->forward(x);
    return out->forward(x).flatten(0, 1);
  }
  std::string head;
  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  TiedHead out{nullptr};
};
TORCH_MODULE(DividedNet);
