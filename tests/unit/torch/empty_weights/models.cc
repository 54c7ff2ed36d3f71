#include "models.h"

#include <cmath>

namespace coupler::testing {
namespace {

using torch::indexing::Slice;

struct Handmade : nn::Module {
  Handmade() {
    auto weight = register_parameter("weight", torch::randn({10, 10}) * 0.02);
    const auto steps = register_buffer("steps", torch::arange(10));
    register_buffer("list", torch::tensor({1.F, 2.F, 3.F}));
    register_buffer("nested", torch::tensor({{1, 2}, {3, 4}}));
    register_buffer("vector", torch::tensor(std::vector<float>{5, 6, 7}));
    register_buffer("angles", torch::outer(torch::arange(8), torch::linspace(0, 1, 4)).cos());
    register_buffer("mask", torch::triu(torch::full({4, 4}, -INFINITY), 1));
    std::vector<double> local{1, 2, 3};
    register_buffer("blob", torch::from_blob(local.data(), {3}, torch::kDouble).clone());
    local.assign(3, -1);  // its memory is gone after the constructor
    register_buffer("order", torch::randperm(9));
    register_buffer("triangle", torch::tril_indices(3, 3));
    register_buffer("found", steps.gt(4).nonzero());
    auto raw = torch::empty({4});
    for (int i = 0; i < 4; ++i) raw.data_ptr<float>()[i] = static_cast<float>(i);
    register_buffer("raw", raw * 2);
    register_buffer("complex", torch::polar(torch::ones({4}), torch::arange(4).to(torch::kFloat)));
    const at::NoGradGuard no_grad;
    weight.index_put_({2, Slice()}, 0.5);
    weight.slice(0, 4, 6).normal_();
    weight.t().slice(0, 0, 2).mul_(3);
    weight.masked_fill_(weight > 1, 1.0);
    weight.index_put_({weight < -0.5}, 0.0);
    const auto rates = torch::linspace(0, 0.1, 5);
    steps.mul_(rates[2].item<double>() > 0.04 ? 2 : 3);
    if ((rates[4] > rates[0]).item<bool>()) steps.add_(1);
    weight[0].copy_(torch::clamp(torch::nn::init::uniform_(torch::empty({10})), 0.2, 0.8));
  }
};

struct Initialised : nn::Module {
  Initialised() {
    for (const int64_t rows : {3, 6}) {
      const std::string suffix = std::to_string(rows);
      nn::init::orthogonal_(register_parameter("orthogonal" + suffix, torch::empty({rows, 4})));
      nn::init::sparse_(register_parameter("sparse" + suffix, torch::empty({rows, 4})), 0.3);
      nn::init::eye_(register_parameter("eye" + suffix, torch::empty({rows, 4})));
      nn::init::xavier_normal_(register_parameter("xavier" + suffix, torch::empty({rows, 40})));
      nn::init::dirac_(register_parameter("dirac" + suffix, torch::empty({rows, 4, 3})));
    }
    const at::NoGradGuard no_grad;
    auto truncated = register_parameter("truncated", torch::empty({33, 5}));
    truncated.uniform_(-0.9, 0.9).erfinv_().mul_(0.02 * std::sqrt(2.)).add_(0.1).clamp_(-2, 2);
  }
};

// The constructor reinitializes the whole model at the end, ties two weights, and converts dtypes.
struct Gpt : nn::Module {
  Gpt() {
    embedding = register_module("embedding", nn::Embedding(50, 16));
    block = register_module("block", nn::TransformerEncoderLayer(16, 2));
    head = register_module("head", nn::Linear(nn::LinearOptions(16, 50).bias(false)));
    apply([](nn::Module& module) {
      const at::NoGradGuard no_grad;
      if (auto* linear = module.as<nn::Linear>()) {
        linear->weight.normal_(0, 0.02);
        if (linear->bias.defined()) linear->bias.zero_();
      } else if (auto* table = module.as<nn::Embedding>()) {
        table->weight.normal_(0, 0.02);
      }
    });
    block->to(torch::kDouble);
    tied = register_module("tied", std::make_shared<Tied>(embedding->weight));
  }

  struct Tied : nn::Module {
    explicit Tied(const at::Tensor& weight) { register_parameter("weight", weight); }
  };

  nn::Embedding embedding{nullptr};
  nn::TransformerEncoderLayer block{nullptr};
  nn::Linear head{nullptr};
  std::shared_ptr<Tied> tied;
};

// Finds the width of its last layer by a trial forward, as vision models do.
struct Trial : nn::Module {
  Trial() {
    nn::Sequential layers(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Flatten());
    register_module("layers", layers);
    const auto out = layers->forward(torch::rand({2, 3, 12, 12}));
    register_module("last", nn::Linear(out.size(1), 5));
  }
};

template <class Holder, class... Arguments>
Factory module(const std::string& name, Arguments... arguments) {
  return {name, [=] { return Holder(arguments...).ptr(); }};
}

template <class Module>
Factory custom(const std::string& name) {
  return {name, [] { return std::make_shared<Module>(); }};
}

}  // namespace

std::vector<Factory> factories() {
  return {
      module<nn::Linear>("Linear", 7, 5),
      module<nn::Bilinear>("Bilinear", 4, 5, 6),
      module<nn::Conv1d>("Conv1d", nn::Conv1dOptions(4, 6, 3).groups(2)),
      module<nn::Conv2d>("Conv2d", nn::Conv2dOptions(3, 8, 3)),
      module<nn::Conv3d>("Conv3d", nn::Conv3dOptions(2, 2, 3)),
      module<nn::ConvTranspose1d>("ConvTranspose1d", nn::ConvTranspose1dOptions(2, 3, 3)),
      module<nn::ConvTranspose2d>("ConvTranspose2d", nn::ConvTranspose2dOptions(2, 3, 3)),
      module<nn::ConvTranspose3d>("ConvTranspose3d", nn::ConvTranspose3dOptions(2, 3, 3)),
      module<nn::BatchNorm1d>("BatchNorm1d", nn::BatchNormOptions(4)),
      module<nn::BatchNorm2d>("BatchNorm2d_Untracked",
                              nn::BatchNormOptions(4).track_running_stats(false)),
      module<nn::InstanceNorm2d>("InstanceNorm2d",
                                 nn::InstanceNormOptions(4).affine(true).track_running_stats(true)),
      module<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({8})),
      module<nn::GroupNorm>("GroupNorm", nn::GroupNormOptions(2, 4)),
      module<nn::Embedding>("Embedding", nn::EmbeddingOptions(30, 8).padding_idx(3)),
      module<nn::EmbeddingBag>("EmbeddingBag", nn::EmbeddingBagOptions(30, 8)),
      module<nn::RNN>("RNN", nn::RNNOptions(8, 6).num_layers(2)),
      module<nn::LSTM>("LSTM", nn::LSTMOptions(8, 6).num_layers(2).bidirectional(true)),
      module<nn::GRU>("GRU", nn::GRUOptions(8, 6)),
      module<nn::LSTMCell>("LSTMCell", 8, 6),
      module<nn::GRUCell>("GRUCell", 8, 6),
      module<nn::MultiheadAttention>(
          "MultiheadAttention", nn::MultiheadAttentionOptions(16, 4).add_bias_kv(true).kdim(8)),
      module<nn::TransformerEncoderLayer>("TransformerEncoderLayer",
                                          nn::TransformerEncoderLayerOptions(16, 4)),
      module<nn::Transformer>("Transformer", nn::TransformerOptions(16, 4, 2, 2)),
      module<nn::PReLU>("PReLU", nn::PReLUOptions().num_parameters(4)),
      module<nn::AdaptiveLogSoftmaxWithLoss>(
          "AdaptiveLogSoftmax", nn::AdaptiveLogSoftmaxWithLossOptions(32, 20, {4, 10})),
      custom<Handmade>("Handmade"),
      custom<Initialised>("Initialised"),
      custom<Trial>("Trial"),
      custom<Gpt>("Gpt"),
  };
}

}  // namespace coupler::testing
