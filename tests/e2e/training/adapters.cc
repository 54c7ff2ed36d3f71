// LoRA under every backend: training the products on W ranks equals the formula, written out and
// trained by one process on the joined batch; adapter files, checkpoints, merging, a quantized
// base.
#include <coupler/lora.h>
#include <coupler/quantize.h>

#include <map>

#include "check.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;
using coupler::LoraAdapter;

constexpr int kLoraSteps = 6, kLoraWindow = 2;
constexpr int64_t kLoraRows = 24;  // divisible by world sizes 1 to 4
constexpr double kLoraScaling = 6.0 / 2;

struct LoraBaseImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = embedding(tokens);  // three dimensions: the bias is an operation of its own
    return out(torch::tanh(middle(torch::tanh(in(x)))).sum(1));
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(11, 16));
  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 32));
  torch::nn::Linear middle =
      register_module("middle", torch::nn::Linear(torch::nn::LinearOptions(32, 32).bias(false)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 11));
};
TORCH_MODULE(LoraBase);

LoraBase base_model(torch::ScalarType type) {
  torch::manual_seed(3);
  LoraBase model;
  model->to(type);
  return model;
}

// Different on every rank until prepare.
LoraAdapter adapt_base(Accelerator& accelerator, LoraBase& model) {
  torch::manual_seed(accelerator.rank());
  LoraAdapter adapter =
      coupler::lora(model, {.rank = 2, .alpha = 6, .target_modules = {"in", "middle", "out"}});
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : adapter.parameters()) parameter.normal_(0, 0.2);
  return adapter;
}

torch::Tensor loss_of_batch(const torch::Tensor& logits, const Batch& batch) {
  return torch::cross_entropy_loss(logits, batch.targets);
}

// The model with weights W + scaling · B A.
struct LoraFormula {
  LoraBase base;
  std::vector<torch::Tensor> products;  // A and B of each layer

  torch::Tensor forward(const torch::Tensor& tokens) const {
    const auto layer = [&](const torch::Tensor& x, const torch::nn::Linear& linear, size_t i) {
      const auto weight =
          linear->weight.detach() + kLoraScaling * products[2 * i + 1].mm(products[2 * i]);
      const auto y = torch::matmul(x, weight.t());
      return linear->bias.defined() ? y + linear->bias.detach() : y;
    };
    const auto x = torch::embedding(base->embedding->weight.detach(), tokens);
    const auto inner = torch::tanh(layer(torch::tanh(layer(x, base->in, 0)), base->middle, 1));
    return layer(inner.sum(1), base->out, 2);
  }
};

std::vector<torch::Tensor> copies_of_products(const LoraAdapter& adapter) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> result;
  for (const auto& parameter : adapter.parameters())
    result.push_back(parameter.detach().clone().set_requires_grad(true));
  return result;
}

void expect_equal_products(const LoraAdapter& adapter, const std::vector<torch::Tensor>& expected,
                           double tolerance, const std::string& when) {
  const auto products = copies_of_products(adapter);
  for (size_t i = 0; i < products.size(); ++i) {
    const double difference = (products[i] - expected[i]).abs().max().item<double>();
    EXPECT(difference <= tolerance,
           when + ", product " + std::to_string(i) + " differs by " + std::to_string(difference));
  }
}

// One window of accumulation.
void train_lora_window(Accelerator& accelerator, LoraBase& net, coupler::Optimizer& opt, int step) {
  for (int part = 0; part < kLoraWindow; ++part) {
    const auto scope = accelerator.accumulate(net);
    const Batch own = own_part(joined_batch(kLoraWindow * step + part, kLoraRows),
                               accelerator.rank(), accelerator.world_size());
    accelerator.backward(loss_of_batch(net->forward(own.tokens), own));
    opt.step();
    opt.zero_grad();
  }
}

void train_lora_window(const LoraFormula& formula, torch::optim::AdamW& optimizer, int step) {
  optimizer.zero_grad();
  for (int part = 0; part < kLoraWindow; ++part) {
    const Batch joined = joined_batch(kLoraWindow * step + part, kLoraRows);
    (loss_of_batch(formula.forward(joined.tokens), joined) / kLoraWindow).backward();
  }
  optimizer.step();
}

void train_lora(Accelerator& accelerator, LoraBase& model, const LoraBase& plain,
                double tolerance) {
  const int64_t window = accelerator.gradient_accumulation_steps();
  accelerator.set_gradient_accumulation_steps(kLoraWindow);
  const LoraAdapter adapter = adapt_base(accelerator, model);
  torch::optim::AdamW optimizer(adapter.parameters(), torch::optim::AdamWOptions(1e-2));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  EXPECT(opt.description().find("fused AdamW") != std::string::npos,
         "the optimizer runs as " + opt.description());
  const LoraFormula formula{plain, copies_of_products(adapter)};
  torch::optim::AdamW formulas(formula.products, torch::optim::AdamWOptions(1e-2));
  const SharedFolder folder(accelerator);
  std::string saved;
  for (int step = 0; step < kLoraSteps; ++step) {
    if (step == kLoraSteps / 2) saved = accelerator.save_state(folder.path());
    train_lora_window(accelerator, net, opt, step);
    train_lora_window(formula, formulas, step);
    expect_equal_products(adapter, formula.products, tolerance, "step " + std::to_string(step));
  }
  for (const auto& parameter : adapter.parameters())
    expect_same_everywhere(accelerator, parameter.detach().clone(), "a product");

  // Only the products have moments: each rank's part of them, which are the model's numbers twice.
  int64_t all = 0, frozen = 0;
  for (const auto& parameter : formula.products) all += parameter.numel();
  for (const auto& parameter : plain->parameters()) frozen += parameter.numel();
  int64_t held = 0;
  for (const auto& parameter : optimizer.param_groups()[0].params()) held += parameter.numel();
  EXPECT(held <= all && frozen > 4 * all, "the optimizer holds " + std::to_string(held));

  // A checkpoint resumes them; the rest is trained again.
  accelerator.load_state(saved);
  for (int step = kLoraSteps / 2; step < kLoraSteps; ++step)
    train_lora_window(accelerator, net, opt, step);
  expect_equal_products(adapter, formula.products, tolerance, "after the checkpoint");

  // Every rank calls it, and the main process writes.
  adapter.save_pretrained(folder.path() + "/adapter");
  accelerator.wait_for_everyone();
  const Batch batch = joined_batch(99, kLoraRows);
  const torch::NoGradGuard no_grad;
  const auto logits = net->forward(batch.tokens);
  LoraBase fresh = base_model(plain->in->weight.scalar_type());
  for (size_t i = 0; i < fresh->parameters().size(); ++i)
    fresh->parameters()[i].copy_(plain->parameters()[i]);
  const auto read = coupler::load_lora(fresh, folder.path() + "/adapter");
  EXPECT((fresh->forward(batch.tokens) - logits).abs().max().item<double>() < 1e-3 + tolerance,
         "the adapter that was read gives other results");
  accelerator.set_gradient_accumulation_steps(window);
}

void lora_trains_as_the_formula(Accelerator& accelerator) {
  LoraBase model = base_model(torch::kDouble);
  const LoraBase plain = base_model(torch::kDouble);
  train_lora(accelerator, model, plain, 1e-10);
  accelerator.free_memory();
}

void lora_merges(Accelerator& accelerator) {
  LoraBase model = base_model(torch::kDouble);
  const LoraAdapter adapter = adapt_base(accelerator, model);
  torch::optim::AdamW optimizer(adapter.parameters());
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const torch::NoGradGuard no_grad;
  const auto tokens = joined_batch(0, kLoraRows).tokens;
  const auto expected = net->forward(tokens);
  const auto as_expected = [&, &net = net] {
    return (net->forward(tokens) - expected).abs().max().item<double>() < 1e-10;
  };
  const auto change = [&, &net = net](bool merge) {
    const auto scope = coupler::summon_full_parameters(net);
    merge ? adapter.merge() : adapter.unmerge();
  };
  change(true);
  EXPECT(adapter.merged() && as_expected(), "the merged model gives other results");
  change(false);
  EXPECT(!adapter.merged() && as_expected(), "the unmerged model gives other results");
  accelerator.free_memory();
}

// In float, since packed products are computed in float.
void lora_on_a_quantized_base(Accelerator& accelerator) {
  LoraBase model = base_model(torch::kFloat);
  const auto kept = coupler::quantize(model, {.bits = 8});
  LoraBase plain = base_model(torch::kFloat);
  {
    const torch::NoGradGuard no_grad;
    const auto packed = model->named_parameters();
    for (const auto& item : plain->named_parameters())
      item.value().copy_(packed[item.key()].clone());
  }
  train_lora(accelerator, model, plain, 2e-4);
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> adapter_checks() {
  return {{"lora_trains_as_the_formula", lora_trains_as_the_formula},
          {"lora_merges", lora_merges},
          {"lora_on_a_quantized_base", lora_on_a_quantized_base}};
}
