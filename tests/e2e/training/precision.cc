// Mixed precision over the job's backend. "bf16", "fp16" and "fp8" run alone and need
// training.mixed_precision with that value; so does "fp16_two_columns", for fp16 with PowerSGD of
// rank
// 2. Those of fp16 also need training.gradient_accumulation_steps=2 and
// training.loss_scale_growth_interval=3; fp8 needs training.fp8_emulate=true.
#include <ATen/autocast_mode.h>
#include <coupler/coupler.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "check.h"

namespace {

using coupler::Accelerator;

constexpr int64_t kExamples = 48;  // divisible by world sizes 1 to 4
constexpr int64_t kFeatures = 16;  // fp8 needs multiples of 16
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct ClassifierImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::gelu(norm->forward(first->forward(x))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kFeatures, 32));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(32, 4));
};
TORCH_MODULE(Classifier);

Classifier classifier() {
  torch::manual_seed(5);
  return Classifier();
}

// Related inputs and targets, the same on every rank.
std::pair<torch::Tensor, torch::Tensor> joined(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step % 4));
  const auto x = torch::randn({kExamples, kFeatures}, generator);
  return {x, x.narrow(1, 0, 4).argmax(1)};
}

torch::Tensor own_rows(Accelerator& accelerator, const torch::Tensor& all) {
  const int64_t rows = kExamples / accelerator.world_size();
  return all.narrow(0, accelerator.rank() * rows, rows);
}

torch::Tensor autocast_loss(Accelerator& accelerator, Classifier& net, int step) {
  const auto [x, target] = joined(step);
  const auto scope = accelerator.autocast();
  return torch::cross_entropy_loss(net->forward(own_rows(accelerator, x)),
                                   own_rows(accelerator, target));
}

std::vector<torch::Tensor> weights_of(Accelerator& accelerator, Classifier& net) {
  std::vector<torch::Tensor> result;
  accelerator.for_each_tensor(net, [&](const std::string&, const torch::Tensor& value) {
    result.push_back(value.clone());
  });
  return result;
}

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

torch::ScalarType type_of_a_product() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

constexpr int kFp16Steps = 40;

// The loss of the last four steps over all ranks' data, in fp32 on one process that skips the same
// optimizer steps.
double plain_loss(const std::vector<bool>& skipped) {
  Classifier net = classifier();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  double sum = 0;
  for (int step = 0; step < kFp16Steps; ++step) {
    const auto [x, target] = joined(step);
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(net->forward(x), target);
    loss.backward();
    if (!skipped[static_cast<size_t>(step)]) optimizer.step();
    if (step >= kFp16Steps - 4) sum += loss.item<double>() / 4;
  }
  return sum;
}

// tolerance: of the last loss, relative to the first.
void loss_falls(Accelerator& accelerator, double tolerance = 0.03) {
  Classifier model = classifier();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  double first = 0, last = 0;
  std::vector<bool> skipped;
  for (int step = 0; step < kFp16Steps; ++step) {
    opt.zero_grad();
    auto loss = autocast_loss(accelerator, net, step);
    // Outside accumulate() every backward is a step; backward still divides.
    accelerator.backward(loss);
    accelerator.clip_grad_norm(net, 1e6);
    opt.step();
    const double mean =
        accelerator.reduce(loss.to(torch::kDouble), coupler::ReduceOp::kMean).item<double>();
    skipped.push_back(accelerator.optimizer_step_was_skipped());
    if (step < 4) first += mean / 4;
    if (step >= kFp16Steps - 4) last += mean / 4;
  }
  const double plain = plain_loss(skipped);
  const auto skips = std::count(skipped.begin(), skipped.end(), true);
  const std::string seen =
      std::to_string(first) + " -> " + std::to_string(last) + ", fp32 " + std::to_string(plain);
  // Here fp16 tries a larger scale every third step.
  EXPECT(skips <= (accelerator.loss_scale() == 1 ? 0 : kFp16Steps / 4),
         std::to_string(skips) + " steps were skipped");
  EXPECT(last < 0.6 * first, "the loss does not fall: " + seen);
  EXPECT(std::abs(last - plain) < tolerance * first, "the loss is not close to fp32's: " + seen);
  for (const auto& weight : weights_of(accelerator, net)) {
    EXPECT(weight.scalar_type() == torch::kFloat, "a parameter is not stored in fp32");
    expect_same_everywhere(accelerator, weight, "a weight");
  }
}

void scopes(Accelerator& accelerator, torch::ScalarType type) {
  EXPECT(type_of_a_product() == torch::kFloat, "autocast without a scope");
  {
    const auto outer = accelerator.autocast();
    EXPECT(type_of_a_product() == type, "no autocast in a scope");
    {
      const auto full = accelerator.autocast(false);
      EXPECT(type_of_a_product() == torch::kFloat, "autocast in a scope that disables it");
      const auto inner = accelerator.autocast();
      EXPECT(type_of_a_product() == type, "no autocast in the third scope");
    }
    EXPECT(type_of_a_product() == type, "no autocast after an inner scope");
    auto elsewhere = torch::kByte, in_its_own = torch::kByte;
    std::thread([&] {
      elsewhere = type_of_a_product();
      const auto scope = accelerator.autocast();
      in_its_own = type_of_a_product();
    }).join();
    EXPECT(elsewhere == torch::kFloat, "autocast on another thread");
    EXPECT(in_its_own == type, "no autocast in another thread's own scope");
    try {
      const auto inner = accelerator.autocast(false);
      throw std::runtime_error("the user's own");
    } catch (const std::runtime_error&) {
      EXPECT(type_of_a_product() == type, "an exception did not end the scope");
    }
  }
  EXPECT(type_of_a_product() == torch::kFloat, "autocast after the scope");
}

// Steps inside one scope: forward always uses the current values, and no copy of a parameter that
// is released after use is kept.
void one_scope_for_all(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const bool comes_and_goes = net->first->weight.storage().data() == nullptr;
  const auto x = joined(0).first;
  torch::Tensor before, inside;
  {
    const auto scope = accelerator.autocast();
    EXPECT(at::autocast::is_autocast_cache_enabled() == !comes_and_goes,
           "copies of released parameters are kept");
    before = net->forward(x);
    accelerator.backward(before.to(torch::kFloat).square().mean());
    EXPECT(accelerator.gradient(net->first->weight).scalar_type() == torch::kFloat,
           "a gradient is not fp32");
    opt.step();
    opt.zero_grad();
    inside = net->forward(x);
    accelerator.backward(inside.to(torch::kFloat).square().mean());
    opt.zero_grad();
  }
  EXPECT(at::autocast::is_autocast_cache_enabled(), "the cache was not restored");
  const auto scope = accelerator.autocast();
  EXPECT(torch::equal(inside, net->forward(x)), "forward after a step used old values");
  EXPECT(!torch::equal(inside, before), "the step changed nothing");
}

// The weights of a new model after three epochs; steps(net, batches, step) trains one.
template <class Steps>
std::vector<torch::Tensor> trained(Accelerator& accelerator, const Steps& steps) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto loader = coupler::data_loader(coupler::TensorDataset(joined(0).first, joined(0).second),
                                     {.batch_size = kExamples / accelerator.world_size()});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  const auto step = [&, &opt = opt](const torch::Tensor& loss) {
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
  };
  for (int epoch = 0; epoch < 3; ++epoch) steps(net, batches, step);
  return weights_of(accelerator, net);
}

// Without any scope, the bodies of loops compute as in one.
void flag_alone(Accelerator& accelerator, torch::ScalarType type) {
  const auto by_flag = trained(accelerator, [&](Classifier& net, auto& batches, const auto& step) {
    for (auto& batch : batches) {
      const auto output = net->forward(batch.data);
      EXPECT(output.scalar_type() == type, "a loop's body is no autocast scope");
      step(torch::cross_entropy_loss(output, batch.target));
    }
    EXPECT(type_of_a_product() == torch::kFloat, "autocast after the loop");
  });
  const auto by_scope = trained(accelerator, [&](Classifier& net, auto&, const auto& step) {
    step(autocast_loss(accelerator, net, 0));
  });
  // With three ranks, sums may be taken in another order.
  for (size_t i = 0; i < by_flag.size(); ++i) {
    EXPECT(torch::allclose(by_flag[i], by_scope[i], 1e-5, 1e-6),
           "a loop does not train as a scope does");
  }
}

// Around 100 bf16 has a resolution of 0.5: statistics need higher precision.
void narrow_batch_norm(Accelerator& accelerator) {
  auto generator = at::detail::createCPUGenerator(3);
  const auto x = (torch::randn({kExamples, 4}, generator) * 4 + 100).to(torch::kBFloat16);
  torch::nn::BatchNorm1d reference(4);
  coupler::SyncBatchNorm ours(4);
  const auto got = ours(own_rows(accelerator, x));
  const auto expected = own_rows(accelerator, reference(x.to(torch::kFloat)));
  EXPECT(got.scalar_type() == torch::kBFloat16, "SyncBatchNorm changed the type of its input");
  EXPECT(torch::allclose(got.to(torch::kFloat), expected, 0.01, 0.01),
         "SyncBatchNorm of bf16 differs from BatchNorm");
  got.to(torch::kFloat).square().sum().backward();
  EXPECT(ours->weight.grad().isfinite().all().item<bool>(), "its gradient is not finite");
}

void bf16(Accelerator& accelerator) {
  narrow_batch_norm(accelerator);
  scopes(accelerator, torch::kBFloat16);
  one_scope_for_all(accelerator);
  flag_alone(accelerator, torch::kBFloat16);
  loss_falls(accelerator);
  EXPECT(accelerator.loss_scale() == 1, "bf16 scales the loss");
}

// The first layer multiplies in fp8, with visible rounding; the second, with four outputs, in bf16.
void fp8_layers(Accelerator& accelerator) {
  Classifier model = classifier();
  const auto weight = model->first->weight.detach().clone();
  const auto bias = model->first->bias.detach().clone();
  auto net = accelerator.prepare(model);
  const auto x = joined(0).first;
  const auto error = [&](const torch::Tensor& got) {
    const auto exact = torch::linear(x, weight, bias);
    return ((got.to(torch::kFloat) - exact).norm() / exact.norm()).item<double>();
  };
  torch::Tensor in_scope, full, narrow;
  {
    const auto scope = accelerator.autocast();
    in_scope = net->first->forward(x);
    narrow = net->second->forward(torch::ones({4, 32}));
    const auto inner = accelerator.autocast(false);
    full = net->first->forward(x);
  }
  EXPECT(in_scope.scalar_type() == torch::kBFloat16 && narrow.scalar_type() == torch::kBFloat16,
         "results are not bf16");
  EXPECT(error(in_scope) > 0.01 && error(in_scope) < 0.06,
         "fp8 is off by " + std::to_string(error(in_scope)));
  EXPECT(error(full) < 1e-5 && error(net->first->forward(x)) < 1e-5,
         "fp8 is used outside its scope");
  (in_scope.to(torch::kFloat).square().sum() + narrow.to(torch::kFloat).sum() + full.sum() * 0)
      .backward();
}

void fp8(Accelerator& accelerator) {
  fp8_layers(accelerator);
  scopes(accelerator, torch::kBFloat16);
  one_scope_for_all(accelerator);
  flag_alone(accelerator, torch::kBFloat16);
  loss_falls(accelerator);
  EXPECT(accelerator.loss_scale() == 1, "fp8 scales the loss");
}

// Makes one element of one gradient infinite: with sharding only one rank finds it.
torch::Tensor with_overflow(Classifier& net, const torch::Tensor& loss, bool overflow) {
  return overflow ? loss + net->second->bias[0] * kInfinity : loss;
}

void overflow_skips(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [net, opt, scheduler] =
      accelerator.prepare(model, optimizer, coupler::linear_schedule(optimizer, {0, 10}));
  for (int step = 0; step < 6; ++step) {
    // Once on the last rank only and once on all ranks, with and without clipping.
    const bool overflow = step == 2 || step == 4;
    const bool here = step == 2 ? accelerator.rank() == accelerator.world_size() - 1 : overflow;
    const auto before = weights_of(accelerator, net);
    const double scale = accelerator.loss_scale();
    const auto rates = scheduler.rates();
    accelerator.backward(with_overflow(net, autocast_loss(accelerator, net, step), here));
    if (step % 2 == 0) {
      const double norm = accelerator.clip_grad_norm(net, 1.0);
      EXPECT(std::isfinite(norm) == !overflow, "the norm is " + std::to_string(norm));
    } else if (step == 3) {
      accelerator.clip_grad_value(net, 0.5);
    }
    opt.step();
    scheduler.step();
    opt.zero_grad();
    const std::string where = "step " + std::to_string(step);
    EXPECT(accelerator.optimizer_step_was_skipped() == overflow,
           where + ": wrong about the skipped step");
    EXPECT(opt.step_was_skipped() == overflow,
           where + ": the optimizer is wrong about the skipped step");
    EXPECT(equal(before, weights_of(accelerator, net)) == overflow, where + ": the weights");
    EXPECT((rates == scheduler.rates()) == overflow, where + ": the scheduler's step");
    if (overflow)
      EXPECT(accelerator.loss_scale() == scale / 2, where + ": the scale did not halve");
    expect_same_everywhere(accelerator, torch::tensor(accelerator.loss_scale(), torch::kDouble),
                           where + ": the scale");
  }
  EXPECT(scheduler.steps() == 4, "the scheduler counted a step that was skipped");
}

void grows(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto step = [&, &net = net, &opt = opt](bool overflow) {
    accelerator.backward(with_overflow(net, autocast_loss(accelerator, net, 0), overflow));
    opt.step();
    opt.zero_grad();
  };
  step(true);
  const double scale = accelerator.loss_scale();
  step(false);
  step(false);
  EXPECT(accelerator.loss_scale() == scale, "the scale grew too early");
  step(false);
  EXPECT(accelerator.loss_scale() == 2 * scale, "the scale did not grow");
}

void unscaled_once(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto before = weights_of(accelerator, net);
  accelerator.backward(autocast_loss(accelerator, net, 0));
  const auto scaled = accelerator.gradient(net->first->weight).clone();
  accelerator.unscale_gradients();
  const auto gradient = accelerator.gradient(net->first->weight).clone();
  EXPECT(torch::equal(scaled / accelerator.loss_scale(), gradient), "gradients are not unscaled");
  EXPECT(gradient.abs().max().item<double>() > 0, "there is no gradient");
  accelerator.unscale_gradients();
  accelerator.clip_grad_norm(net, 1e6);
  opt.step();
  EXPECT(torch::allclose(weights_of(accelerator, net)[0], before[0] - gradient, 1e-5, 1e-7),
         "the step did not use the unscaled gradient");
}

// Two batches per window: only the second one clips, steps and changes the rate.
void accumulating(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt, scheduler] =
      accelerator.prepare(model, optimizer, coupler::linear_schedule(optimizer, {0, 10}));
  for (int batch = 0; batch < 4; ++batch) {
    const auto before = weights_of(accelerator, net);
    const auto window = accelerator.accumulate(net);
    const bool last = batch % 2 == 1;
    accelerator.backward(autocast_loss(accelerator, net, batch));
    accelerator.unscale_gradients();
    const double norm = accelerator.clip_grad_norm(net, 1.0);
    EXPECT((norm != 0) == last && norm < 100, "the norm is " + std::to_string(norm));
    opt.step();
    scheduler.step();
    opt.zero_grad();
    EXPECT(scheduler.steps() == (batch + 1) / 2, "the scheduler stepped while accumulating");
    EXPECT(equal(before, weights_of(accelerator, net)) == !last,
           "the weights changed while accumulating");
  }
}

void no_closure(Accelerator& accelerator) {
  Classifier model = classifier();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const std::string message =
      error_of([&, &opt = opt] { opt.step([] { return torch::ones({}); }); });
  EXPECT(message.find("step(closure) with fp16") != std::string::npos, message);
}

void half_parameters(Accelerator& accelerator) {
  Classifier model = classifier();
  model->to(torch::kHalf);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const std::string message = error_of([&] { accelerator.prepare(model, optimizer); });
  EXPECT(message.find("holds an fp16 parameter") != std::string::npos, message);
}

void fp16(Accelerator& accelerator, double tolerance) {
  EXPECT(accelerator.loss_scale() == 65536, "the initial scale is wrong");
  unscaled_once(accelerator);
  scopes(accelerator, torch::kHalf);
  one_scope_for_all(accelerator);
  overflow_skips(accelerator);
  grows(accelerator);
  accumulating(accelerator);
  loss_falls(accelerator, tolerance);
  no_closure(accelerator);
  half_parameters(accelerator);
}

void no_mixed_precision(Accelerator& accelerator) {
  const auto scope = accelerator.autocast();
  EXPECT(type_of_a_product() == torch::kFloat, "a scope has an effect");
  accelerator.unscale_gradients();
  EXPECT(accelerator.loss_scale() == 1 && !accelerator.optimizer_step_was_skipped(),
         "there is a loss scale");
}

}  // namespace

std::vector<Check> precision_checks() {
  return {
      {"no_mixed_precision", no_mixed_precision},
      {"bf16", bf16, /*alone=*/true},
      {"fp16", [](Accelerator& accelerator) { fp16(accelerator, 0.03); }, /*alone=*/true},
      // PowerSGD with two columns lags a few steps; so it does with bf16, where no step is skipped.
      {"fp16_two_columns", [](Accelerator& accelerator) { fp16(accelerator, 0.08); },
       /*alone=*/true},
      {"fp8", fp8, /*alone=*/true},
  };
}
