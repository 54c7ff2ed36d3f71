// Sequences divided over a context group: attention of unmodified modules is that of the whole
// sequence, in either method, and training is that of one process.
#include <coupler/coupler.h>

#include <cmath>
#include <optional>

#include "mesh_checks.h"
#include "texts.h"

using coupler::Accelerator;

namespace {

void sequences_train(Accelerator& accelerator) {
  const Expected expected = train_on_texts_alone(kSteps);
  DividedNet model(accelerator.mesh().size("tensor") > 1 ? "colwise_gather" : "");
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto run = [&, &net = net](int step) {
    const Texts texts = own_texts(accelerator, joined_texts(step), kSamples);
    double own = 0;
    {
      const auto scope = accelerator.context_parallel({{texts.ids, 1}, {texts.targets, -1}});
      EXPECT(texts.ids.size(1) == kTokens / accelerator.mesh().size("context"),
             "the sequence is not divided");
      const torch::Tensor loss = loss_of_texts(net, texts);
      accelerator.backward(loss);
      own = loss.item<double>();
    }
    EXPECT(texts.ids.size(1) == kTokens, "the sequence is not restored");
    return own;
  };
  train_as_expected(accelerator, net, opt, expected, 0, kSteps, run);
  expect_weights(accelerator, net, expected);
}

struct Attention {
  torch::Tensor output, query, key, value;  // and gradients
};

using Mask = std::optional<torch::Tensor>;

Attention attention_of(const std::vector<torch::Tensor>& inputs, const torch::Tensor& weights,
                       const Mask& mask, bool causal, std::optional<double> scale, bool grouped) {
  std::vector<torch::Tensor> leaves;
  for (const auto& input : inputs) leaves.push_back(input.clone().requires_grad_(true));
  const torch::Tensor output = torch::scaled_dot_product_attention(
      leaves[0], leaves[1], leaves[2], mask, 0.0, causal, scale, grouped);
  output.backward(weights);
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

// Kinds of attention, with this rank's part of one over all tokens.
void sequences_attend(Accelerator& accelerator) {
  const int64_t tokens = 8 * accelerator.mesh().size("context");
  struct Kind {
    const char* name;
    at::ScalarType type;
    double tolerance;
    int64_t key_heads;
    bool causal, causal_mask, empty_mask;
  };
  for (const Kind& kind : {Kind{"causal", at::kDouble, 1e-9, 4, true, false, false},
                           Kind{"full", at::kDouble, 1e-9, 4, false, false, false},
                           Kind{"grouped", at::kDouble, 1e-9, 2, true, false, false},
                           Kind{"one key head", at::kDouble, 1e-9, 1, false, false, false},
                           Kind{"masked", at::kDouble, 1e-9, 4, false, true, false},
                           Kind{"empty mask", at::kDouble, 1e-9, 4, false, false, true},
                           Kind{"fp32", at::kFloat, 1e-5, 4, true, false, false},
                           Kind{"bf16", at::kBFloat16, 5e-2, 4, true, false, false}}) {
    auto generator = at::detail::createCPUGenerator(31);
    const auto draw = [&](int64_t heads) {
      return torch::randn({2, heads, tokens, 4}, generator, torch::kDouble).to(kind.type);
    };
    const std::vector<torch::Tensor> inputs = {draw(4), draw(kind.key_heads), draw(kind.key_heads)};
    const torch::Tensor weights = draw(4);
    const bool grouped = kind.key_heads != 4;
    const Attention whole =
        attention_of(inputs, weights, {}, kind.causal || kind.causal_mask, 0.3, grouped);
    std::vector<torch::Tensor> parts = inputs;
    for (torch::Tensor& part : parts) part = part.clone();
    torch::Tensor own_weights = weights.clone(), output = whole.output.clone();
    std::vector<torch::Tensor> gradients = {whole.query.clone(), whole.key.clone(),
                                            whole.value.clone()};
    std::vector<coupler::SequenceTensor> divided = {{own_weights, 2}, {output, 2}};
    for (const auto* list : {&parts, &gradients}) {
      for (const torch::Tensor& tensor : *list) divided.push_back({tensor, -2});
    }
    const auto scope = accelerator.context_parallel(divided);
    const int64_t own = parts[0].size(2);
    Mask mask;
    if (kind.causal_mask)
      mask = torch::full({own, own}, -INFINITY, torch::kDouble).triu(1).view({1, 1, own, own});
    if (kind.empty_mask) mask = torch::ones({own, own}, torch::kBool);
    const Attention ours = attention_of(parts, own_weights, mask, kind.causal, 0.3, grouped);
    const auto expect_close = [&](const torch::Tensor& a, const torch::Tensor& b,
                                  const char* what) {
      const double apart = (a - b).abs().max().item<double>();
      EXPECT(apart < kind.tolerance,
             std::string(kind.name) + ": " + what + " differs by " + std::to_string(apart));
    };
    expect_close(ours.output, output, "the result");
    expect_close(ours.query, gradients[0], "the queries' gradient");
    expect_close(ours.key, gradients[1], "the keys' gradient");
    expect_close(ours.value, gradients[2], "the values' gradient");
  }
}

// Repeated in backward, after its scope.
void sequences_checkpointed(Accelerator& accelerator) {
  const int64_t tokens = 4 * accelerator.mesh().size("context");
  const torch::Tensor x =
      torch::linspace(-1, 1, 2 * 4 * tokens * 4, torch::kDouble).view({2, 4, tokens, 4}).sin();
  const auto attend = [](const torch::Tensor& y) {
    return torch::scaled_dot_product_attention(y, y.cos(), y.exp(), {}, 0.0, true);
  };
  const auto gradient = [&](bool again) {
    torch::Tensor own = x.clone(), loss;
    const auto scope = accelerator.context_parallel({{own, 2}});
    own = own.clone().requires_grad_(true);
    loss = again ? coupler::activation_checkpoint(attend, own).square().sum()
                 : attend(own).square().sum();
    loss.backward();
    return own.grad();
  };
  EXPECT(torch::equal(gradient(true), gradient(false)), "the gradients differ");
}

void sequences_wrong_use(Accelerator& accelerator) {
  if (accelerator.mesh().size("context") == 1) return;
  const auto attend = [](const torch::Tensor& query, const torch::Tensor& key, const Mask& mask,
                         double dropout) {
    torch::scaled_dot_product_attention(query, key, key, mask, dropout);
  };
  expect_error(
      [&] {
        (void)accelerator.context_parallel({{torch::ones({2, 7}), 1}});
      },
      "tensors[0] has a sequence of 7, which cannot be divided into");
  expect_error(
      [&] {
        (void)accelerator.context_parallel({{torch::ones({2, 8}), 2}});
      },
      "tensors[0] of [2, 8] has no dimension 2");
  expect_error([&] { (void)accelerator.context_parallel({{torch::Tensor(), 0}}); }, "is undefined");
  expect_error(
      [&] {
        (void)accelerator.context_parallel({{torch::ones({8}).requires_grad_(true), 0}});
      },
      "requires a gradient");
  const torch::Tensor ids = torch::ones({2, 32});
  const auto scope = accelerator.context_parallel({{ids, 1}});
  expect_error(
      [&] {
        (void)accelerator.context_parallel({{torch::ones({2, 32}), 1}});
      },
      "another scope of it is alive");
  const torch::Tensor x = torch::randn({1, 4, 4, 4});
  const torch::Tensor window = torch::ones({4, 4}, torch::kBool).tril().triu(-1);
  expect_error([&] { attend(x, x, window, 0); }, "its mask of [4, 4] is neither causal nor empty");
  expect_error([&] { attend(x, x, {}, 0.1); }, "dropout of 0.1");
  expect_error([&] { attend(x, torch::randn({1, 4, 6, 4}), {}, 0); }, "keys of [1, 4, 6, 4]");
}

// Ranks that train by themselves cannot attend to parts of one sequence.
void sequences_refuse_local_sgd(Accelerator& accelerator) {
  const coupler::Mesh& mesh = accelerator.mesh();
  if (mesh.size("context") == 1 || mesh.size("tensor") > 1 || mesh.size("shard") > 1) return;
  auto net = accelerator.prepare(torch::nn::Linear(2, 2));
  const auto divide = [&] {
    const torch::Tensor ids = torch::ones({2, 32});
    const auto scope = accelerator.context_parallel({{ids, 1}});
  };
  {
    const coupler::LocalSGD local_sgd(accelerator, net);
    expect_error(divide, "is trained with LocalSGD, so the ranks that divide a sequence");
  }
  divide();
}

}  // namespace

std::vector<Check> mesh_context_checks() {
  return {{"sequences_train", sequences_train},
          {"sequences_attend", sequences_attend},
          {"sequences_checkpointed", sequences_checkpointed},
          {"sequences_wrong_use", sequences_wrong_use},
          {"sequences_refuse_local_sgd", sequences_refuse_local_sgd, /*alone=*/true}};
}
