// Every torch::nn module kind with parameters: managed against plain.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "comparison.h"

namespace coupler::residency {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace): comparison.h

struct Kind {
  std::string kind;     // the name in torch::nn
  std::string variant;  // of its options
  Make make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.kind << " " << kind.variant; }

template <class MakeHolder, class Forward>
Kind kind(const std::string& name, const std::string& variant, MakeHolder make, Forward forward) {
  return {name, variant, [make, forward] {
            torch::manual_seed(11);
            auto holder = make();
            // Values that start as zeros or ones prove little.
            const torch::NoGradGuard no_grad;
            for (at::Tensor& parameter : holder->parameters()) {
              parameter.add_(torch::randn_like(parameter), 0.1);
            }
            return Subject{holder.ptr(), [holder, forward](Inputs& inputs) mutable {
                             return forward(holder, inputs);
                           }};
          }};
}

// A forward with one input of `sizes` and one output.
auto on(std::vector<int64_t> sizes) {
  return [sizes](auto& m, Inputs& in) -> Tensors { return {m->forward(in.real(sizes))}; };
}

template <class Module>
Tensors recurrent(Module& m, Inputs& in, int64_t states, int64_t hidden) {
  auto [output, state] = m->forward(in.real({5, 3, 4}), in.real({states, 3, hidden}));
  return {output, state};
}

std::vector<Kind> kinds() {
  return {
      kind(
          "Linear", "", [] { return nn::Linear(6, 5); }, on({3, 6})),
      kind(
          "Linear", "3d, no bias", [] { return nn::Linear(nn::LinearOptions(6, 5).bias(false)); },
          on({2, 3, 6})),
      kind(
          "Bilinear", "", [] { return nn::Bilinear(4, 5, 3); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({2, 4}), in.real({2, 5}))};
          }),
      kind(
          "Embedding", "", [] { return nn::Embedding(9, 4); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.index(9, {3, 4}))};
          }),
      kind(
          "Embedding", "sparse, padding",
          [] { return nn::Embedding(nn::EmbeddingOptions(9, 4).sparse(true).padding_idx(2)); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.index(9, {3, 4}))};
          }),
      kind(
          "EmbeddingBag", "mean", [] { return nn::EmbeddingBag(9, 4); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.index(9, {3, 4}))};
          }),
      kind(
          "EmbeddingBag", "sum, weights",
          [] { return nn::EmbeddingBag(nn::EmbeddingBagOptions(9, 4).mode(torch::kSum)); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.index(9, {3, 4}), {}, in.real({3, 4}))};
          }),
      kind(
          "EmbeddingBag", "max",
          [] { return nn::EmbeddingBag(nn::EmbeddingBagOptions(9, 4).mode(torch::kMax)); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.index(9, {12}), torch::tensor({0, 5, 7}))};
          }),
      kind(
          "Conv1d", "", [] { return nn::Conv1d(3, 4, 3); }, on({2, 3, 8})),
      kind(
          "Conv2d", "", [] { return nn::Conv2d(3, 4, 3); }, on({2, 3, 8, 7})),
      kind(
          "Conv2d", "grouped, strided, dilated",
          [] {
            return nn::Conv2d(
                nn::Conv2dOptions(4, 8, 3).groups(2).stride(2).dilation(2).padding(1));
          },
          on({2, 4, 9, 9})),
      kind(
          "Conv2d", "depthwise, circular",
          [] {
            return nn::Conv2d(
                nn::Conv2dOptions(4, 4, 3).groups(4).padding(1).padding_mode(torch::kCircular));
          },
          on({2, 4, 6, 6})),
      kind(
          "Conv3d", "", [] { return nn::Conv3d(2, 3, 2); }, on({2, 2, 4, 4, 4})),
      kind(
          "ConvTranspose1d", "", [] { return nn::ConvTranspose1d(3, 4, 3); }, on({2, 3, 5})),
      kind(
          "ConvTranspose2d", "", [] { return nn::ConvTranspose2d(3, 4, 3); }, on({2, 3, 5, 4})),
      kind(
          "ConvTranspose3d", "", [] { return nn::ConvTranspose3d(2, 3, 2); }, on({2, 2, 3, 3, 3})),
      kind(
          "BatchNorm1d", "", [] { return nn::BatchNorm1d(4); }, on({6, 4})),
      kind(
          "BatchNorm2d", "", [] { return nn::BatchNorm2d(4); }, on({3, 4, 5, 5})),
      kind(
          "BatchNorm3d", "", [] { return nn::BatchNorm3d(2); }, on({3, 2, 3, 3, 3})),
      kind(
          "InstanceNorm1d", "affine",
          [] { return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(3).affine(true)); },
          on({2, 3, 8})),
      kind(
          "InstanceNorm2d", "affine, running",
          [] {
            return nn::InstanceNorm2d(
                nn::InstanceNorm2dOptions(3).affine(true).track_running_stats(true));
          },
          on({2, 3, 4, 4})),
      kind(
          "InstanceNorm3d", "affine",
          [] { return nn::InstanceNorm3d(nn::InstanceNorm3dOptions(2).affine(true)); },
          on({2, 2, 3, 3, 3})),
      kind(
          "LayerNorm", "", [] { return nn::LayerNorm(nn::LayerNormOptions({6})); }, on({3, 6})),
      kind(
          "GroupNorm", "", [] { return nn::GroupNorm(2, 6); }, on({3, 6, 5})),
      kind(
          "PReLU", "", [] { return nn::PReLU(nn::PReLUOptions().num_parameters(3)); },
          on({2, 3, 4})),
      kind(
          "RNN", "two layers, bidirectional, dropout",
          [] {
            return nn::RNN(nn::RNNOptions(4, 3).num_layers(2).bidirectional(true).dropout(0.3));
          },
          [](auto& m, Inputs& in) -> Tensors { return recurrent(m, in, 4, 3); }),
      kind(
          "RNN", "relu, batch first",
          [] { return nn::RNN(nn::RNNOptions(4, 3).nonlinearity(torch::kReLU).batch_first(true)); },
          [](auto& m, Inputs& in) -> Tensors {
            return {std::get<0>(m->forward(in.real({2, 5, 4})))};
          }),
      kind(
          "GRU", "two layers, bidirectional, dropout",
          [] {
            return nn::GRU(nn::GRUOptions(4, 3).num_layers(2).bidirectional(true).dropout(0.3));
          },
          [](auto& m, Inputs& in) -> Tensors { return recurrent(m, in, 4, 3); }),
      kind(
          "LSTM", "two layers, bidirectional, dropout",
          [] {
            return nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true).dropout(0.3));
          },
          [](auto& m, Inputs& in) -> Tensors {
            auto [output, state] = m->forward(in.real({5, 3, 4}));
            return {output, std::get<0>(state), std::get<1>(state)};
          }),
      kind(
          "LSTM", "projection, packed", [] { return nn::LSTM(nn::LSTMOptions(4, 6).proj_size(3)); },
          [](auto& m, Inputs& in) -> Tensors {
            const auto packed =
                nn::utils::rnn::pack_padded_sequence(in.real({5, 3, 4}), torch::tensor({5, 3, 2}));
            auto [output, state] = m->forward_with_packed_input(packed);
            return {output.data(), std::get<0>(state), std::get<1>(state)};
          }),
      kind(
          "RNNCell", "", [] { return nn::RNNCell(4, 3); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({2, 4}), in.real({2, 3}))};
          }),
      kind(
          "GRUCell", "", [] { return nn::GRUCell(4, 3); },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({2, 4}), in.real({2, 3}))};
          }),
      kind(
          "LSTMCell", "", [] { return nn::LSTMCell(4, 3); },
          [](auto& m, Inputs& in) -> Tensors {
            auto [h, c] = m->forward(in.real({2, 4}));
            std::tie(h, c) = m->forward(in.real({2, 4}), std::make_tuple(h, c));
            return {h, c};
          }),
      kind(
          "MultiheadAttention", "self, dropout",
          [] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(0.2)); },
          [](auto& m, Inputs& in) -> Tensors {
            const auto x = in.real({5, 3, 8});
            auto [output, weights] = m->forward(x, x, x);
            return {output, weights};
          }),
      kind(
          "MultiheadAttention", "own key and value sizes, added bias",
          [] {
            return nn::MultiheadAttention(
                nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(6).add_bias_kv(true));
          },
          [](auto& m, Inputs& in) -> Tensors {
            return {std::get<0>(
                m->forward(in.real({5, 3, 8}), in.real({4, 3, 6}), in.real({4, 3, 6})))};
          }),
      kind(
          "TransformerEncoderLayer", "dropout",
          [] {
            return nn::TransformerEncoderLayer(
                nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
          },
          on({5, 3, 8})),
      kind(
          "TransformerDecoderLayer", "dropout",
          [] {
            return nn::TransformerDecoderLayer(
                nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16));
          },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({4, 3, 8}), in.real({5, 3, 8}))};
          }),
      kind(
          "TransformerEncoder", "two layers",
          [] {
            return nn::TransformerEncoder(nn::TransformerEncoderOptions(
                nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16), 2));
          },
          on({5, 3, 8})),
      kind(
          "TransformerDecoder", "two layers",
          [] {
            return nn::TransformerDecoder(nn::TransformerDecoderOptions(
                nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16), 2));
          },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({4, 3, 8}), in.real({5, 3, 8}))};
          }),
      kind(
          "Transformer", "",
          [] {
            return nn::Transformer(nn::TransformerOptions(8, 2)
                                       .num_encoder_layers(2)
                                       .num_decoder_layers(2)
                                       .dim_feedforward(16));
          },
          [](auto& m, Inputs& in) -> Tensors {
            return {m->forward(in.real({5, 3, 8}), in.real({4, 3, 8}))};
          }),
      kind(
          "AdaptiveLogSoftmaxWithLoss", "bias",
          [] {
            return nn::AdaptiveLogSoftmaxWithLoss(
                nn::AdaptiveLogSoftmaxWithLossOptions(8, 20, {4, 10}).div_value(2).head_bias(true));
          },
          [](auto& m, Inputs& in) -> Tensors {
            const auto x = in.real({10, 8});
            const auto result = m->forward(x, in.index(20, {10}));
            return {result.output, torch::full({1}, 3.0) * result.loss, m->log_prob(x)};
          }),
      kind(
          "Sequential", "shared with ReLU",
          [] { return nn::Sequential(nn::Linear(6, 5), nn::ReLU(), nn::Linear(5, 4)); },
          on({3, 6})),
      kind(
          "ModuleList", "", [] { return nn::ModuleList(nn::Linear(6, 6), nn::Linear(6, 6)); },
          [](nn::ModuleList& m, Inputs& in) -> Tensors {
            at::Tensor x = in.real({3, 6});
            for (const auto& layer : *m) x = layer->as<nn::Linear>()->forward(x).tanh();
            return {x};
          }),
      kind(
          "ModuleDict", "",
          [] {
            nn::ModuleDict dict;
            dict->update(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{
                {"a", nn::Linear(6, 6).ptr()}, {"b", nn::Linear(6, 2).ptr()}});
            return dict;
          },
          [](nn::ModuleDict& m, Inputs& in) -> Tensors {
            const auto x = m["a"]->as<nn::Linear>()->forward(in.real({3, 6}));
            return {m["b"]->as<nn::Linear>()->forward(x)};
          }),
      kind(
          "ParameterDict", "",
          [] {
            nn::ParameterDict dict;
            dict->insert("a", torch::ones({4, 4}, torch::requires_grad()));
            dict->insert("b", torch::ones({4}, torch::requires_grad()));
            return dict;
          },
          [](nn::ParameterDict& m, Inputs& in) -> Tensors {
            return {in.real({2, 4}).matmul(m["a"]) + m["b"]};
          }),
      kind(
          "ParameterList", "",
          [] {
            return nn::ParameterList(torch::ones({4, 4}, torch::requires_grad()),
                                     torch::ones({4}, torch::requires_grad()));
          },
          [](nn::ParameterList& m, Inputs& in) -> Tensors {
            return {in.real({2, 4}).matmul(m[0]) * m[1]};
          }),
  };
}

class ModuleKind : public ::testing::TestWithParam<Kind> {};

TEST_P(ModuleKind, Managed_EqualsPlain) { expect_managed_equals_plain(GetParam().make); }

TEST_P(ModuleKind, ManagedAndPrefetched_EqualsPlain) {
  expect_managed_equals_plain(GetParam().make, {.prefetch = 2, .live_bytes = 512});
}

std::string test_name(const ::testing::TestParamInfo<Kind>& info) {
  std::string name = info.param.kind + (info.param.variant.empty() ? "" : "_") + info.param.variant;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ModuleKind, ::testing::ValuesIn(kinds()), test_name);

// Modules of torch::nn without parameters, whatever their options.
constexpr const char* kWithoutParameters = R"(
  AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
  AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss CELU
  CTCLoss ConstantPad1d ConstantPad2d ConstantPad3d CosineEmbeddingLoss CosineSimilarity
  CrossEntropyLoss CrossMapLRN2d Dropout Dropout2d Dropout3d ELU FeatureAlphaDropout Flatten
  Fold FractionalMaxPool2d FractionalMaxPool3d Functional GELU GLU Hardshrink Hardtanh
  HingeEmbeddingLoss HuberLoss Identity KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LeakyReLU
  LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d
  MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish MultiLabelMarginLoss
  MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PairwiseDistance PixelShuffle PixelUnshuffle
  PoissonNLLLoss RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d
  ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid SmoothL1Loss
  SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink
  Threshold TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample ZeroPad1d
  ZeroPad2d ZeroPad3d
)";

std::set<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Fails for a module of a newer LibTorch, which is in neither list.
TEST(ModuleKinds, EveryModuleOfTheHeaders_IsListed) {
  const std::regex declaration(R"(TORCH_MODULE\((\w+)\))");
  const auto folder =
      std::filesystem::path(COUPLER_TORCH_INCLUDE) / "torch/csrc/api/include/torch/nn/modules";
  std::set<std::string> listed = words(kWithoutParameters);
  for (const Kind& known : kinds()) listed.insert(known.kind);
  size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch match;
      if (line.starts_with("///") || !std::regex_search(line, match, declaration)) continue;
      if (match[1] == "M") continue;  // in comments
      ++found;
      EXPECT_EQ(listed.count(match[1]), 1u)
          << match[1] << " of " << entry.path()
          << " is not tested: add it to the list with or without parameters";
    }
  }
  EXPECT_GT(found, 100u);
}

}  // namespace
}  // namespace coupler::residency
