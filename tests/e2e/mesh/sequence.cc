// With parallel.sequence, ranks of a tensor group have parts of the tokens between divided layers,
// and train as one process does.
#include <coupler/coupler.h>

#include "mesh_checks.h"
#include "texts.h"

using coupler::Accelerator;

namespace {

constexpr int64_t kHead = kWidth / kHeads;

// One key head for all queries, which stays whole.
struct PartialBlockImpl : torch::nn::Module {
  PartialBlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    q = register_module("q", torch::nn::Linear(kWidth, kWidth));
    k = register_module("k", torch::nn::Linear(kWidth, kHead));
    v = register_module("v", torch::nn::Linear(kWidth, kHead));
    o = register_module("o", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 3 * kWidth));
    down = register_module("down", torch::nn::Linear(3 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x, double rate) {
    const torch::Tensor y = norm->forward(x), own = q->forward(y);
    const torch::Tensor queries = own.view({own.size(0), own.size(1), -1, kHead}).transpose(1, 2);
    const auto shared = [&](const torch::Tensor& of_one) {
      return of_one.unsqueeze(1).expand({-1, queries.size(1), -1, -1});
    };
    const torch::Tensor seen = torch::scaled_dot_product_attention(
        queries, shared(k->forward(y)), shared(v->forward(y)), {}, 0.0, /*is_causal=*/true);
    const torch::Tensor z =
        x + torch::dropout(o->forward(seen.transpose(1, 2).flatten(2)), rate, /*train=*/true);
    return z + torch::dropout(down->forward(torch::gelu(up->forward(z))), rate, /*train=*/true);
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(PartialBlock);

// The embedding and its head are whole on every rank, as with a vocabulary that does not divide.
struct PartialNetImpl : torch::nn::Module, coupler::TensorParallelLayers {
  // whole: used without Coupler, although the process has a tensor group.
  explicit PartialNetImpl(bool whole_of, double rate_of) : whole(whole_of), rate(rate_of) {
    torch::manual_seed(12);
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    places = register_parameter("places", torch::randn({1, kTokens, kWidth}));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(PartialBlock());
    mix = register_module("mix", torch::nn::Linear(kWidth, kWidth));
    out = register_module("out", TiedHead(tokens->weight));
    to(torch::kDouble);
  }
  coupler::TensorPlan tensor_plan(int) const override {
    return {
        {"", "replicate"},          {"tokens", "sequence"},        {"out", "gather_sequence"},
        {"mix", "sequence"},        {"blocks.*.norm", "sequence"}, {"blocks.*.q", "colwise", kHead},
        {"blocks.*.k", "shared"},   {"blocks.*.v", "shared"},      {"blocks.*.o", "rowwise"},
        {"blocks.*.up", "colwise"}, {"blocks.*.down", "rowwise"}};
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = tokens->forward(ids) + (whole ? places : coupler::sequence_part(places));
    x = torch::dropout(x, rate, /*train=*/true);
    for (const auto& block : *blocks) x = block->as<PartialBlock>()->forward(x, rate);
    return out->forward(mix->forward(x)).flatten(0, 1);
  }
  bool whole;
  double rate;
  torch::Tensor places;
  torch::nn::Embedding tokens{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear mix{nullptr};
  TiedHead out{nullptr};
};
TORCH_MODULE(PartialNet);

// With the same seed, ranks together drop what one process drops: each has its part of the mask.
void partial_dropout(Accelerator& accelerator) {
  // Replicas with other samples draw other masks than one process with all samples.
  const double rate = accelerator.mesh().size(kGradients) == 1 ? 0.3 : 0.0;
  PartialNet model(/*whole=*/false, rate), alone(/*whole=*/true, rate);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2),
      of_alone(parameters_of(*alone).values(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (int step = 0; step < 3; ++step) {
    const Texts joined = joined_texts(step), own = own_texts(accelerator, joined, kGradients);
    torch::manual_seed(20 + step);
    const torch::Tensor loss =
        torch::cross_entropy_loss(net->forward(own.ids), own.targets.flatten());
    accelerator.backward(loss);
    torch::manual_seed(20 + step);
    const torch::Tensor expected =
        torch::cross_entropy_loss(alone->forward(joined.ids), joined.targets.flatten());
    expected.backward();
    expect_near(mean_over_replicas(accelerator, loss.item<double>()), expected.item<double>(),
                "the loss");
    const auto ours = parameters_of(*net);
    for (const auto& item : parameters_of(*alone)) {
      const torch::Tensor gradient = accelerator.gradient(ours[item.key()]);
      EXPECT(torch::allclose(gradient, item.value().grad(), 1e-9, 1e-12),
             "the gradient of " + item.key() + " differs");
    }
    expect_near(accelerator.clip_grad_norm(net, 0.1),
                torch::nn::utils::clip_grad_norm_(parameters_of(*alone).values(), 0.1),
                "the gradient norm");
    opt.step();
    opt.zero_grad();
    of_alone.step();
    of_alone.zero_grad();
  }
}

void partial_values(Accelerator& accelerator) {
  DividedNet model, alone("");
  auto net = accelerator.prepare(model);
  const torch::NoGradGuard no_grad;
  const int64_t ranks = accelerator.mesh().size("tensor"), rank = accelerator.mesh().rank("tensor"),
                part = kTokens / ranks;
  EXPECT(coupler::sequence_ranks() == ranks, "sequence_ranks is not the size of the group");
  const torch::Tensor ids = joined_texts(0).ids;
  const torch::Tensor x = net->tokens->forward(ids), expected = alone->tokens->forward(ids);
  EXPECT(torch::allclose(x, expected.narrow(1, rank * part, part)), "not this rank's embeddings");
  const torch::Tensor places = net->places->forward(torch::arange(kTokens));
  EXPECT(places.size(0) == part, "positions are not this rank's");
  const torch::Tensor after = net->blocks[0]->as<DividedBlock>()->forward(x);
  EXPECT(after.size(1) == part, "a block makes more than a part of the tokens");
  EXPECT(torch::allclose(coupler::whole_sequence(after),
                         alone->blocks[0]->as<DividedBlock>()->forward(expected), 1e-9, 1e-12),
         "the parts of a block's results differ");
}

void partial_functions(Accelerator& accelerator) {
  DividedNet any;
  auto keeps_the_group = accelerator.prepare(any);
  const int64_t ranks = accelerator.mesh().size("tensor"), rank = accelerator.mesh().rank("tensor");
  const torch::Tensor x =
      torch::arange(2 * 4 * ranks * 3, torch::kDouble).view({2, 4 * ranks, 3}).requires_grad_(true);
  const torch::Tensor part = coupler::sequence_part(x);
  EXPECT(torch::equal(part, x.narrow(1, 4 * rank, 4)), "not this rank's part");
  const torch::Tensor whole = coupler::whole_sequence(part);
  EXPECT(torch::equal(whole, x), "the parts do not make up the whole");
  // Gradients of `part` come from this rank, those of `whole` from what all ranks compute.
  ((part * static_cast<double>(rank)).sum() + whole.square().sum()).backward();
  torch::Tensor expected = 2 * x.detach();
  for (int64_t r = 0; r < ranks; ++r) expected.narrow(1, 4 * r, 4).add_(static_cast<double>(r));
  EXPECT(torch::equal(x.grad(), expected), "the gradients differ");
  EXPECT(torch::equal(coupler::sequence_part(x.transpose(1, 2), -1), part.transpose(1, 2)),
         "another dimension");
  expect_error(
      [&] {
        coupler::sequence_part(torch::ones({2, 2 * ranks + 1, 3}));
      },
      "cannot be divided over");
  expect_error([&] { coupler::whole_sequence(part, 3); }, "has no dimension 3");
  expect_error([&] { torch::autograd::grad({whole.sum()}, {x}, {}, true, /*create_graph=*/true); },
               "gradients of gradients");
}

void partial_wrong_use(Accelerator& accelerator) {
  DividedNet model;
  auto net = accelerator.prepare(model);
  const int64_t ranks = accelerator.mesh().size("tensor"), part = kTokens / ranks;
  const auto ids = [](at::IntArrayRef sizes) { return torch::zeros(sizes, torch::kLong); };
  expect_error(
      [&] {
        net->tokens->forward(ids({2, ranks + 1}));
      },
      "tokens in dimension 1, which cannot be divided over");
  expect_error(
      [&] {
        net->tokens->forward(ids({2, 1, ranks}));
      },
      "so that it needs [batch, tokens]");
  torch::nn::Linear q = net->blocks[0]->as<DividedBlock>()->q;
  expect_error(
      [&] {
        q->forward(torch::ones({3, kWidth}, torch::kDouble));
      },
      "'blocks.0.q' gets values of [3] before their features");
  // A module that takes the number of tokens from its inputs, which are a part.
  const torch::Tensor results = q->forward(torch::ones({2, part, kWidth}, torch::kDouble));
  EXPECT(results.size(1) == kTokens, "a colwise layer does not gather");
  expect_error(
      [&] {
        results.view({2, part, -1, kWidth / kHeads});
      },
      "'blocks.0.q' has results for 8 tokens, which it gathered from");
}

torch::Tensor loss_of_tokens(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

torch::nn::Sequential make_partial_chain() {
  torch::manual_seed(8);
  torch::nn::Sequential chain(
      coupler::VocabParallelEmbedding(kVocabulary, 8), coupler::ColumnParallelLinear(8, 16),
      torch::nn::Tanh(), coupler::RowParallelLinear(16, 8), coupler::ColumnParallelLinear(8, 8),
      torch::nn::Tanh(), coupler::RowParallelLinear(8, 8),
      coupler::ColumnParallelLinear(torch::nn::LinearOptions(8, kVocabulary).bias(false), true));
  chain->to(torch::kDouble);
  return chain;
}

// What a stage sends is a part of the tokens.
void partial_stages(Accelerator& accelerator) {
  auto chain = make_partial_chain(), alone = make_partial_chain();
  auto pipeline = coupler::prepare_pipeline(accelerator, chain, {.micro_batches = 2});
  torch::optim::AdamW optimizer(chain->parameters(), 1e-2), of_alone(alone->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  for (int step = 0; step < kSteps; ++step) {
    const Texts joined = joined_texts(step), own = own_texts(accelerator, joined, kGradients);
    const double loss = pipeline.train_step(own.ids, own.targets, loss_of_tokens);
    const torch::Tensor expected = loss_of_tokens(alone->forward(joined.ids), joined.targets);
    expected.backward();
    expect_near(mean_over_replicas(accelerator, loss), expected.item<double>(), "the loss");
    opt.step();
    opt.zero_grad();
    of_alone.step();
    of_alone.zero_grad();
  }
  Expected expected;
  expected.weights = parameters_of(*alone);
  expect_weights(accelerator, chain, expected);
}

}  // namespace

std::vector<Check> mesh_sequence_checks() {
  return {{"partial_values", partial_values},
          {"partial_functions", partial_functions},
          {"partial_dropout", partial_dropout},
          {"partial_wrong_use", partial_wrong_use},
          {"partial_stages", partial_stages, /*alone=*/true}};
}
