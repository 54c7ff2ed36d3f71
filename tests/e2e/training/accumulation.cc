// Accumulation: windows and their divisors, weights, the place of zero_grad, alternating models.
#include <coupler/coupler.h>

#include "check.h"

namespace {

using coupler::Accelerator;

// Its loss is the sum of its input's first column times a weight, so the weight's gradient is the
// sum of the inputs.
struct CounterImpl : torch::nn::Module {
  CounterImpl() {
    to(torch::kDouble);
    torch::NoGradGuard no_grad;
    linear->weight.fill_(1);
  }
  torch::Tensor forward(const torch::Tensor& values) { return linear(values).sum(); }
  torch::nn::Linear linear =
      register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(1, 2).bias(false)));
};
TORCH_MODULE(Counter);

double gradient_of(Accelerator& accelerator, Counter& net) {
  return accelerator.gradient(net->linear->weight)[0][0].item<double>();
}

double weight_of(Accelerator& accelerator, Counter& net) {
  double result = 0;
  accelerator.for_each_tensor(net, [&](const std::string&, const torch::Tensor& value) {
    result = value[0][0].item<double>();
  });
  return result;
}

void expect_near(double actual, double expected, const std::string& what) {
  EXPECT(std::abs(actual - expected) < 1e-9 * (1 + std::abs(expected)),
         what + ": " + std::to_string(actual) + " instead of " + std::to_string(expected));
}

// Samples 1, 2, …; `batches` for each rank.
auto counting_loader(const Accelerator& accelerator, int64_t batches) {
  const auto values =
      torch::arange(1, batches * accelerator.world_size() + 1, torch::kDouble).unsqueeze(1);
  return coupler::data_loader(coupler::TensorDataset(values, values), {.batch_size = 1});
}

double mean_over_ranks(Accelerator& accelerator, double own) {
  return accelerator.reduce(torch::tensor(own, torch::kDouble), coupler::ReduceOp::kMean)
      .item<double>();
}

// Six batches in windows of four: the second holds two and is divided by two.
void partial_window(Accelerator& accelerator) {
  accelerator.set_gradient_accumulation_steps(4);
  Counter model;
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  auto loader = counting_loader(accelerator, 6);
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  double seen = 0, weight = weight_of(accelerator, net);
  int held = 0;
  std::vector<int> windows;
  for (auto& batch : batches) {
    auto scope = accelerator.accumulate(net);
    seen += batch.data.sum().item<double>();
    ++held;
    accelerator.backward(net->forward(batch.data));
    opt.step();
    if (accelerator.sync_gradients()) {
      const double mean = mean_over_ranks(accelerator, seen) / held;
      expect_near(gradient_of(accelerator, net), mean, "a window's gradient");
      weight -= mean;
      windows.push_back(held);
      seen = held = 0;
    }
    opt.zero_grad();
    expect_near(weight_of(accelerator, net), weight, "the weight");
  }
  EXPECT((windows == std::vector<int>{4, 2}), "the windows' sizes are wrong");
  accelerator.set_gradient_accumulation_steps(1);
}

// Two backwards in each batch, and windows that end early.
void two_losses_a_batch(Accelerator& accelerator) {
  accelerator.set_gradient_accumulation_steps(3);
  Counter model;
  auto loader = counting_loader(accelerator, 5);
  auto [net, batches] = accelerator.prepare(model, loader);
  double seen = 0;
  int held = 0;
  for (auto& batch : batches) {
    auto scope = accelerator.accumulate(net);
    seen += 3 * batch.data.sum().item<double>();
    ++held;
    accelerator.backward(net->forward(batch.data));
    accelerator.backward(net->forward(batch.data) * 2);
    if (!accelerator.sync_gradients()) continue;
    expect_near(gradient_of(accelerator, net), mean_over_ranks(accelerator, seen) / held,
                "the gradient of two losses");
    break;
  }
  accelerator.set_gradient_accumulation_steps(1);
}

// zero_grad before backward or after step gives the same weights, which equal the expected ones.
void zero_grad_first_or_last(Accelerator& accelerator) {
  accelerator.set_gradient_accumulation_steps(2);
  std::vector<double> ends;
  for (const bool first : {true, false}) {
    Counter model;
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto loader = counting_loader(accelerator, 5);
    auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
    double expected = weight_of(accelerator, net), seen = 0;
    int held = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : batches) {
        auto scope = accelerator.accumulate(net);
        seen += batch.data.sum().item<double>();
        ++held;
        if (first) opt.zero_grad();
        accelerator.backward(net->forward(batch.data));
        opt.step();
        if (!first) opt.zero_grad();
        if (!accelerator.sync_gradients()) continue;
        expected -= 0.5 * mean_over_ranks(accelerator, seen) / held;
        seen = held = 0;
      }
    }
    expect_near(weight_of(accelerator, net), expected,
                first ? "zero_grad first" : "zero_grad last");
    ends.push_back(weight_of(accelerator, net));
  }
  EXPECT(ends[0] == ends[1], "the order of zero_grad and step changes the weights");
  accelerator.set_gradient_accumulation_steps(1);
}

// Calling zero_grad after backward instead of step discards the gradients.
void step_given_up(Accelerator& accelerator) {
  Counter model;
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto one = torch::ones({1, 1}, torch::kDouble);
  for (int step = 0; step < 2; ++step) {
    auto scope = accelerator.accumulate(net);
    accelerator.backward(net->forward(one));
    expect_near(gradient_of(accelerator, net), 1, "the gradient");
    if (step == 0) opt.zero_grad();
  }
}

// Every token has the same weight, however many a batch or a rank has.
void weighted_backward(Accelerator& accelerator) {
  Counter model;
  auto net = accelerator.prepare(model);
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  auto opt = accelerator.prepare(optimizer);
  const int rank = accelerator.rank();
  for (const int64_t steps : {1, 3}) {
    accelerator.set_gradient_accumulation_steps(steps);
    double sum = 0, weight = 0;
    for (int64_t step = 0; step < steps; ++step) {
      auto scope = accelerator.accumulate(net);
      const double tokens = 1.0 + rank + 2.0 * static_cast<double>(step);
      const double value = 10.0 * rank + static_cast<double>(step) + 1;
      accelerator.backward(net->forward(torch::full({1, 1}, value * tokens, torch::kDouble)),
                           tokens);
      sum += value * tokens;
      weight += tokens;
      if (!accelerator.sync_gradients()) continue;
      expect_near(gradient_of(accelerator, net),
                  mean_over_ranks(accelerator, sum) / mean_over_ranks(accelerator, weight),
                  "the weighted gradient");
      opt.zero_grad();
    }
  }
  accelerator.set_gradient_accumulation_steps(1);
  // Only rank 0 has a weight; then no rank has one.
  for (const double of_rank_0 : {5.0, 0.0}) {
    auto scope = accelerator.accumulate(net);
    const double weight = rank == 0 ? of_rank_0 : 0;
    accelerator.backward(net->forward(torch::full({1, 1}, weight, torch::kDouble)), weight);
    expect_near(gradient_of(accelerator, net), of_rank_0 > 0 ? 1 : 0,
                "the gradient if only rank 0 counts");
    opt.zero_grad();
  }
  // Without a scope each backward is averaged separately.
  accelerator.backward(net->forward(torch::full({1, 1}, 4.0, torch::kDouble)), 2.0);
  expect_near(gradient_of(accelerator, net), 2, "the gradient outside a scope");
}

void weights_refused(Accelerator& accelerator) {
  Counter model;
  auto net = accelerator.prepare(model);
  const auto one = torch::ones({1, 1}, torch::kDouble);
  const auto refused = [&](double weight, const std::string& text) {
    const std::string message = error_of([&] { accelerator.backward(net->forward(one), weight); });
    EXPECT(message.find(text) != std::string::npos, message);
  };
  refused(-1, "the weight is -1, but must be finite and at least 0");
  refused(std::nan(""), "the weight is nan");
  accelerator.set_gradient_accumulation_steps(2);
  {
    auto scope = accelerator.accumulate(net);
    accelerator.backward(net->forward(one));
    refused(1, "with and without a weight in one accumulation window");
  }
  { auto scope = accelerator.accumulate(net); }  // the window's end
  accelerator.set_gradient_accumulation_steps(1);
  auto scope = accelerator.accumulate(net);
  accelerator.backward(net->forward(one), 1);
  refused(1, "a second backward with a weight");
  const std::string steps = error_of([&] { accelerator.set_gradient_accumulation_steps(0); });
  EXPECT(
      steps.find("gradient_accumulation_steps is 0, but must be at least 1") != std::string::npos,
      steps);
}

// Two models with a scope each: their windows are independent.
void models_in_turn(Accelerator& accelerator) {
  accelerator.set_gradient_accumulation_steps(2);
  Counter first, second;
  auto [one, other] = accelerator.prepare(first, second);
  const auto input = torch::ones({1, 1}, torch::kDouble);
  for (int batch = 0; batch < 4; ++batch) {
    for (Counter* net : {&one, &other}) {
      auto scope = accelerator.accumulate(*net);
      accelerator.backward((*net)->forward(input * (net == &one ? 1 : 3)));
      EXPECT(accelerator.sync_gradients() == (batch % 2 == 1),
             "not every second batch of a model synchronizes");
    }
  }
  expect_near(gradient_of(accelerator, one), 2, "the first model's gradient");
  expect_near(gradient_of(accelerator, other), 6, "the second model's gradient");
  { auto scope = accelerator.accumulate(one); }
  const std::string message = error_of(
      [&, &one = one, &other = other] { auto scope = accelerator.accumulate(one, other); });
  EXPECT(message.find("has accumulated 1 batches, but") != std::string::npos, message);
  { auto scope = accelerator.accumulate(one); }
  accelerator.set_gradient_accumulation_steps(1);
}

// A substitute batch, for a rank without further inputs, does not count, with or without weights.
void stand_ins_count_for_nothing(Accelerator& accelerator) {
  const int64_t world_size = accelerator.world_size();
  const auto values = torch::arange(1, 2 * world_size, torch::kDouble).unsqueeze(1);
  for (const bool weighted : {false, true}) {
    Counter model;
    auto loader = coupler::data_loader(coupler::TensorDataset(values, values),
                                       {.batch_size = 1, .even_batches = false});
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
    auto scope = accelerator.join_uneven_inputs(batches);
    double first = 1;
    for (auto& batch : batches) {
      auto window = accelerator.accumulate(net);
      const auto loss = net->forward(batch.data);
      weighted ? accelerator.backward(loss, 1) : accelerator.backward(loss);
      // The last step's samples are those from world + 1 to 2 world - 1.
      const double count = first == 1 ? world_size : world_size - 1, mean = first + (count - 1) / 2;
      const double expected = count == 0 ? 0 : mean * (weighted ? 1 : count / world_size);
      expect_near(gradient_of(accelerator, net), expected, "the gradient with substitute batches");
      opt.zero_grad();
      first += static_cast<double>(world_size);
    }
  }
}

void triggered_sync(Accelerator& accelerator) {
  Counter model;
  auto net = accelerator.prepare(model);
  auto scope = accelerator.no_sync(net);
  accelerator.trigger_sync_in_backward(net);
  accelerator.backward(net->forward(torch::full({1, 1}, 1.0 + accelerator.rank(), torch::kDouble)));
  expect_near(gradient_of(accelerator, net), mean_over_ranks(accelerator, 1.0 + accelerator.rank()),
              "the synchronized gradient");
}

}  // namespace

std::vector<Check> accumulation_checks() {
  return {
      {"partial_window", partial_window},
      {"two_losses_a_batch", two_losses_a_batch},
      {"zero_grad_first_or_last", zero_grad_first_or_last},
      {"step_given_up", step_given_up},
      {"weighted_backward", weighted_backward},
      {"weights_refused", weights_refused},
      {"models_in_turn", models_in_turn},
      {"stand_ins_count_for_nothing", stand_ins_count_for_nothing},
      {"triggered_sync", triggered_sync},
  };
}
