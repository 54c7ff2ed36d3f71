// Dropout in models that a tensor group divides: values that its ranks have whole are dropped
// alike, each rank's part is dropped by its own draws, and activations that are computed again are
// dropped as before.
#include <coupler/coupler.h>
#include <coupler/lora.h>

#include "expected.h"
#include "mesh_checks.h"

using coupler::Accelerator;

namespace {

constexpr double kRate = 0.4;
constexpr int64_t kDropWidth = 8, kDropHeads = 4, kDropTokens = 8;

// Linear in x: attention's scores are those of ones.
struct DroppingBlockImpl : torch::nn::Module {
  DroppingBlockImpl() {
    const auto layer = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name,
                             torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    q = layer("q", kDropWidth, kDropWidth);
    k = layer("k", kDropWidth, kDropWidth);
    v = layer("v", kDropWidth, kDropWidth);
    o = layer("o", kDropWidth, kDropWidth);
    up = layer("up", kDropWidth, 3 * kDropWidth);
    down = layer("down", 3 * kDropWidth, kDropWidth);
  }
  static torch::Tensor heads(const torch::Tensor& x) {
    return x.view({x.size(0), x.size(1), coupler::local_heads(kDropHeads), -1}).transpose(1, 2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor ones = torch::ones_like(x);
    const torch::Tensor seen = torch::scaled_dot_product_attention(
        heads(q->forward(ones)), heads(k->forward(ones)), heads(v->forward(x)), {}, kRate);
    const torch::Tensor y =
        x + torch::dropout(o->forward(seen.transpose(1, 2).flatten(2)), kRate, /*train=*/true);
    const torch::Tensor inside = torch::dropout(up->forward(y), kRate, /*train=*/true);
    return y + torch::dropout(down->forward(inside), kRate, /*train=*/true);
  }
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(DroppingBlock);

struct DroppingNetImpl : torch::nn::Module, coupler::TensorParallelLayers {
  DroppingNetImpl() {
    torch::manual_seed(14);
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(DroppingBlock());
    to(torch::kDouble);
  }
  coupler::TensorPlan tensor_plan(int) const override {
    constexpr int64_t size = kDropWidth / kDropHeads;
    return {{"blocks.*.q", "colwise", size}, {"blocks.*.k", "colwise", size},
            {"blocks.*.v", "colwise", size}, {"blocks.*.o", "rowwise"},
            {"blocks.*.up", "colwise"},      {"blocks.*.down", "rowwise"}};
  }
  torch::Tensor forward(torch::Tensor x) {
    x = coupler::sequence_part(x);
    for (const auto& block : *blocks) x = block->as<DroppingBlock>()->forward(x);
    return coupler::whole_sequence(x);
  }
  torch::nn::ModuleList blocks{nullptr};
};
TORCH_MODULE(DroppingNet);

torch::Tensor dropping_inputs() {
  auto generator = at::detail::createCPUGenerator(15);
  return torch::randn({2, kDropTokens, kDropWidth}, generator, torch::kDouble);
}

torch::Tensor of_each_rank(Accelerator& accelerator, const torch::Tensor& own) {
  return accelerator.group("tensor").gather(own.detach().unsqueeze(0).contiguous());
}

// In the values of the next layers, which differ, a mask would not be seen: so of ones.
void masks_are_apart(Accelerator& accelerator) {
  DroppingNet model;
  auto net = accelerator.prepare(model);
  const torch::NoGradGuard no_grad;
  const auto& block = *net->blocks[0]->as<DroppingBlock>();
  const int64_t ranks = accelerator.mesh().size("tensor");
  torch::manual_seed(16);
  const auto expect_own = [&](const torch::Tensor& dropped, const char* what) {
    const torch::Tensor all = of_each_rank(accelerator, dropped);
    for (int64_t rank = 1; rank < ranks; ++rank)
      EXPECT(!torch::equal(all[0], all[rank]), std::string(what) + " is dropped alike");
  };
  const auto expect_alike = [&](const char* what) {
    const torch::Tensor ones = torch::ones({3, 5, kDropWidth}, torch::kDouble);
    const torch::Tensor all =
        of_each_rank(accelerator, torch::dropout(ones, kRate, /*train=*/true));
    for (int64_t rank = 1; rank < ranks; ++rank)
      EXPECT(torch::equal(all[0], all[rank]), std::string(what) + ", ranks drop other values");
  };
  const torch::Tensor x = coupler::sequence_part(dropping_inputs());
  torch::nn::Linear q = block.q, o = block.o, up = block.up, down = block.down;
  const torch::Tensor of_heads = q->forward(x);
  const torch::Tensor ones = torch::ones_like(DroppingBlockImpl::heads(of_heads));
  expect_own(torch::scaled_dot_product_attention(ones, ones, ones, {}, kRate), "attention");
  const torch::Tensor scores = torch::ones({2, ones.size(1), 8, 8}, torch::kDouble);
  expect_own(torch::dropout(scores, kRate, /*train=*/true), "a tensor of scores");
  o->forward(of_heads);
  expect_alike("after attention");
  const torch::Tensor inside = up->forward(x);
  expect_own(torch::dropout(torch::ones_like(inside), kRate, /*train=*/true), "an activation");
  down->forward(inside);
  expect_alike("after a block");
}

void expect_same_on_ranks(Accelerator& accelerator, const torch::Tensor& own, const char* what) {
  const torch::Tensor all = of_each_rank(accelerator, own);
  for (int64_t rank = 1; rank < all.size(0); ++rank)
    EXPECT(torch::allclose(all[0], all[rank], 1e-9, 1e-12), std::string(what) + " differ");
}

// The sum of the results is the product of the gradient and x only if backward sees the masks of
// forward.
void expect_linear(Accelerator& accelerator, const torch::Tensor& results, const torch::Tensor& x) {
  expect_same_on_ranks(accelerator, results, "the ranks' results");
  accelerator.backward(results.sum());
  const double product = (x.grad() * x.detach()).sum().item<double>(),
               sum = results.sum().item<double>();
  expect_near(product / sum, 1, "the product of gradient and input, of the sum of the results,");
  expect_same_on_ranks(accelerator, torch::rand({4}, torch::kDouble),
                       "numbers that ranks draw after backward");
}

void masks_return(Accelerator& accelerator) {
  DroppingNet model;
  auto net = accelerator.prepare(model);
  torch::manual_seed(17);
  const torch::Tensor x = dropping_inputs().requires_grad_(true);
  expect_linear(accelerator, net->forward(x), x);
}

// Computed again by the program's own call.
void masks_return_in_a_function(Accelerator& accelerator) {
  DroppingNet model;
  auto net = accelerator.prepare(model);
  torch::manual_seed(18);
  const torch::Tensor x = dropping_inputs().requires_grad_(true);
  const torch::Tensor results = coupler::activation_checkpoint(
      [&net](const torch::Tensor& input) { return net->forward(input); }, x);
  expect_linear(accelerator, results, x);
}

// A of a colwise layer is whole, and so is what it multiplies.
void masks_of_lora(Accelerator& accelerator) {
  DroppingNet model;
  const coupler::LoraAdapter adapter = coupler::lora(
      *model,
      {.rank = 2, .alpha = 4, .dropout = kRate, .target_modules = {"v", "o", "up", "down"}});
  {
    const torch::NoGradGuard no_grad;  // B is 0 at first
    for (const torch::Tensor& matrix : adapter.parameters()) matrix.normal_();
  }
  auto net = accelerator.prepare(model);
  torch::manual_seed(19);
  const torch::Tensor x = dropping_inputs().requires_grad_(true);
  expect_linear(accelerator, net->forward(x), x);
  const auto parameters = net->named_parameters();
  for (const char* name : {"blocks.0.v.lora_A.weight", "blocks.1.up.lora_A.weight"})
    expect_same_on_ranks(accelerator, accelerator.gradient(parameters[name]), name);
}

}  // namespace

std::vector<Check> mesh_dropout_checks() {
  return {{"drops_apart", masks_are_apart},
          {"drops_again", masks_return},
          {"drops_lora", masks_of_lora},
          {"drops_in_a_function", masks_return_in_a_function, /*alone=*/true}};
}
