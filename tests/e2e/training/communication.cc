// Less communication: what each setting of [communication] promises about training. Each check
// needs its settings. The parameters are in fp32, the dtype that is compressed.
#include <coupler/coupler.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "check.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;

constexpr int64_t kTowerRows = 48;  // of all ranks; divisible by world sizes 1 to 4

struct TowerImpl : torch::nn::Module {
  TowerImpl()
      : first(register_module("first", torch::nn::Linear(20, 48))),
        second(register_module("second", torch::nn::Linear(48, 48))),
        last(register_module("last", torch::nn::Linear(48, 5))),
        unused(register_module("unused", torch::nn::Linear(3, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(second(torch::tanh(first(x)))));
  }
  torch::nn::Linear first, second, last, unused;
};
TORCH_MODULE(Tower);

struct Sample {
  torch::Tensor data, target;
};

// A learnable problem: classes from a fixed random map.
Sample sample(int step, int rank, int world_size) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(500 + step % 8));
  auto map_generator = at::detail::createCPUGenerator(7);
  const auto data = torch::randn({kTowerRows, 20}, generator);
  const auto target = torch::mm(data, torch::randn({20, 5}, map_generator)).argmax(1);
  const int64_t rows = kTowerRows / world_size;
  return {data.narrow(0, rank * rows, rows), target.narrow(0, rank * rows, rows)};
}

torch::Tensor loss_of(Tower& net, const Sample& batch) {
  return torch::cross_entropy_loss(net->forward(batch.data), batch.target);
}

Tower make_tower() {
  torch::manual_seed(11);
  return {};
}

using Values = std::map<std::string, torch::Tensor>;

Values tower_values(Accelerator& accelerator, Tower& net) {
  const torch::NoGradGuard no_grad;
  Values values;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    values[name] = value.detach().clone();
  });
  return values;
}

void expect_equal_ranks(Accelerator& accelerator, Tower& net) {
  for (const auto& [name, value] : tower_values(accelerator, net)) {
    expect_same_everywhere(accelerator, value, name);
  }
}

// The loss over all data of a network trained on all of it in one process.
double loss_of_all(Tower& net) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += loss_of(net, sample(i, 0, 1)).item<double>();
  return sum / 8;
}

constexpr int kLearningSteps = 120;

double uncompressed_loss() {
  Tower net = make_tower();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < kLearningSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, sample(step, 0, 1)).backward();
    optimizer.step();
  }
  return loss_of_all(net);
}

template <class Net, class Optimizer>
void train(Accelerator& accelerator, Net& net, Optimizer& opt, int from, int to) {
  for (int step = from; step < to; ++step) {
    const Sample own = sample(step, accelerator.rank(), accelerator.world_size());
    accelerator.backward(loss_of(net, own));
    opt.step();
    opt.zero_grad();
  }
}

// Learns as training without compression does, and ranks stay equal.
void tower_learns(Accelerator& accelerator) {
  Tower model = make_tower();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  train(accelerator, net, opt, 0, kLearningSteps);
  expect_equal_ranks(accelerator, net);
  Tower copy = make_tower();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, value] : tower_values(accelerator, net)) {
      copy->named_parameters()[name].copy_(value);
    }
  }
  const double start = [] {
    Tower fresh = make_tower();
    return loss_of_all(fresh);
  }();
  const double ours = loss_of_all(copy), plain = uncompressed_loss();
  EXPECT(ours < 0.5 * start, "the loss is " + std::to_string(ours) + " from " +
                                 std::to_string(start) + ", without compression " +
                                 std::to_string(plain));
  EXPECT(std::abs(ours - plain) < 0.05 * start,
         "the loss is " + std::to_string(ours) + ", without compression " + std::to_string(plain));
}

// Training resumes from a checkpoint as if uninterrupted: the carried state is restored.
void goes_on(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  Tower model = make_tower();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  train(accelerator, net, opt, 0, 7);
  const std::string path = accelerator.save_state(folder.path());
  train(accelerator, net, opt, 7, 15);
  const Values expected = tower_values(accelerator, net);
  accelerator.load_state(path);
  train(accelerator, net, opt, 7, 15);
  for (const auto& [name, value] : tower_values(accelerator, net)) {
    EXPECT(torch::equal(value, expected.at(name)), name + " differs after resuming");
  }
}

// Compared with the training of all ranks, performed here one after the other. The settings come
// from the environment.
void local_sgd(Accelerator& accelerator) {
  const int world_size = accelerator.world_size();
  const auto number = [](const char* name, double otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::atof(text);
  };
  const auto every = static_cast<int>(number("COUPLER_COMMUNICATION_LOCAL_SGD_STEPS", 1));
  const double momentum = number("COUPLER_COMMUNICATION_LOCAL_SGD_MOMENTUM", 0);
  Tower model = make_tower();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = accelerator.prepare(model, optimizer);

  std::vector<Tower> towers;
  for (int r = 0; r < world_size; ++r) towers.push_back(make_tower());
  const auto parameters = [&](int rank, size_t i) {
    return towers[static_cast<size_t>(rank)]->parameters()[i];
  };
  const size_t count = towers[0]->parameters().size();
  std::vector<torch::Tensor> previous, velocity;
  for (size_t i = 0; i < count; ++i) {
    previous.push_back(parameters(0, i).detach().clone());
    velocity.push_back(torch::zeros_like(previous.back()));
  }
  for (int step = 0; step < 3 * every; ++step) {
    train(accelerator, net, opt, step, step + 1);
    const torch::NoGradGuard no_grad;
    for (int r = 0; r < world_size; ++r) {
      Tower& tower = towers[static_cast<size_t>(r)];
      {
        const torch::AutoGradMode grad(true);
        loss_of(tower, sample(step, r, world_size)).backward();
      }
      for (auto& parameter : tower->parameters()) {
        if (!parameter.grad().defined()) continue;
        parameter.sub_(parameter.grad(), 0.1);
        parameter.mutable_grad().reset();
      }
    }
    for (size_t i = 0; world_size > 1 && i < count && (step + 1) % every == 0; ++i) {
      torch::Tensor mean = torch::zeros_like(previous[i]);
      for (int r = 0; r < world_size; ++r) mean += parameters(r, i) / world_size;
      velocity[i] = momentum * velocity[i] + mean - previous[i];
      previous[i] = previous[i] + velocity[i];
      for (int r = 0; r < world_size; ++r) parameters(r, i).copy_(previous[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      const auto own = net->parameters()[i];
      const double difference =
          (own - parameters(accelerator.rank(), i)).abs().max().item<double>();
      EXPECT(difference < 1e-5, "parameter " + std::to_string(i) + " differs by " +
                                    std::to_string(difference) + " after step " +
                                    std::to_string(step));
    }
  }
  // A checkpoint, like the end of training, first makes ranks equal.
  train(accelerator, net, opt, 3 * every, 3 * every + 1);
  accelerator.end_training();
  for (const auto& parameter : net->parameters()) {
    expect_same_everywhere(accelerator, parameter, "a parameter after end_training()");
  }
}

// A LocalSGD scope, compared with the training of all ranks performed here. Before and after the
// scope gradients are averaged.
void local_sgd_scope(Accelerator& accelerator) {
  const int rank = accelerator.rank(), world_size = accelerator.world_size();
  constexpr int kEvery = 3, kBefore = 2, kLocal = 7, kAfter = 2;
  Tower model = make_tower();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  std::vector<Tower> towers;
  for (int r = 0; r < world_size; ++r) towers.push_back(make_tower());
  const auto average = [&](const auto& tensor_of) {
    for (size_t i = 0; i < towers[0]->parameters().size(); ++i) {
      std::vector<torch::Tensor> all;
      for (Tower& tower : towers) {
        if (tensor_of(tower, i).defined()) all.push_back(tensor_of(tower, i));
      }
      if (all.empty()) continue;
      const torch::Tensor mean = torch::stack(all).mean(0);
      for (torch::Tensor& tensor : all) tensor.copy_(mean);
    }
  };
  const auto parameter = [](Tower& tower, size_t i) { return tower->parameters()[i].detach(); };
  const auto gradient = [](Tower& tower, size_t i) { return tower->parameters()[i].grad(); };
  const auto reference_step = [&](int step, bool local) {
    for (int r = 0; r < world_size; ++r) {
      Tower& tower = towers[static_cast<size_t>(r)];
      tower->zero_grad();
      loss_of(tower, sample(step, r, world_size)).backward();
    }
    const torch::NoGradGuard no_grad;
    if (!local) average(gradient);
    for (Tower& tower : towers) {
      for (auto& value : tower->parameters()) {
        if (value.grad().defined()) value.sub_(value.grad(), 0.1);
      }
    }
  };
  const auto compare = [&, &net = net](const std::string& when) {
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto right = parameter(towers[static_cast<size_t>(rank)], i);
      const double difference = (net->parameters()[i] - right).abs().max().template item<double>();
      EXPECT(difference < 1e-5, "parameter " + std::to_string(i) + " differs by " +
                                    std::to_string(difference) + " " + when);
    }
  };

  int step = 0;
  for (; step < kBefore; ++step) {
    train(accelerator, net, opt, step, step + 1);
    reference_step(step, /*local=*/false);
  }
  compare("before the scope");
  {
    coupler::LocalSGD local_sgd(accelerator, net, {.local_sgd_steps = kEvery});
    for (int i = 1; i <= kLocal; ++i, ++step) {
      train(accelerator, net, opt, step, step + 1);
      local_sgd.step();
      reference_step(step, /*local=*/true);
      if (i % kEvery == 0) average(parameter);
      compare("in the scope, after step " + std::to_string(i));
    }
    if (world_size > 1) {
      const std::string twice =
          error_of([&, &net = net] { const coupler::LocalSGD second(accelerator, net); });
      EXPECT(twice.find("another one of the model") != std::string::npos, twice);
    }
  }
  average(parameter);
  compare("after the scope");
  for (const int end = step + kAfter; step < end; ++step) {
    train(accelerator, net, opt, step, step + 1);
    reference_step(step, /*local=*/false);
  }
  compare("after steps that follow the scope");
  // Not enabled: it has no effect.
  {
    coupler::LocalSGD off(accelerator, net, {.local_sgd_steps = kEvery, .enabled = false});
    train(accelerator, net, opt, step, step + 1);
    off.step();
    reference_step(step, /*local=*/false);
    compare("if it is not enabled");
  }
  // The default is Accelerate's; an accumulation window counts as one step; a checkpoint within the
  // scope has the average.
  {
    const SharedFolder folder(accelerator);
    coupler::LocalSGD local_sgd(accelerator, net);
    accelerator.set_gradient_accumulation_steps(2);
    for (int i = 0; i < 14; ++i) {
      auto window = accelerator.accumulate(net);
      train(accelerator, net, opt, step + i, step + i + 1);
      local_sgd.step();
    }
    accelerator.set_gradient_accumulation_steps(1);
    const torch::Tensor own = net->first->weight.detach().clone();
    const auto apart = accelerator.gather(own.reshape({1, -1}));
    EXPECT(world_size == 1 || !torch::equal(apart[0], apart[1]),
           "ranks are equal after 7 steps of 8");
    accelerator.save_state(folder.path());
    expect_equal_ranks(accelerator, net);
  }
  // After an exception the ranks still differ and no rank waits; a checkpoint has the average.
  try {
    coupler::LocalSGD local_sgd(accelerator, net, {.local_sgd_steps = 100});
    train(accelerator, net, opt, 0, 1);
    if (rank == 0) throw std::runtime_error("one rank alone");
    throw std::runtime_error("another one");
  } catch (const std::runtime_error&) {
  }
  expect_equal_ranks(accelerator, net);
  const std::string none = error_of(
      [&, &net = net] { const coupler::LocalSGD wrong(accelerator, net, {.local_sgd_steps = 0}); });
  EXPECT(none.find("must be at least 1") != std::string::npos, none);
}

// The scope is rejected with check_options().expect as the reason, but not if it is disabled.
void local_sgd_scope_refused(Accelerator& accelerator) {
  Tower model = make_tower();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const std::string message =
      error_of([&, &net = net] { const coupler::LocalSGD local_sgd(accelerator, net); });
  EXPECT(message.find(check_options().expect) != std::string::npos, message);
  const coupler::LocalSGD off(accelerator, net, {.enabled = false});
  train(accelerator, net, opt, 0, 1);
}

void refused(Accelerator& accelerator) {
  Tower model = make_tower();
  const std::string message = error_of([&] { accelerator.prepare(model); });
  std::printf("rejected: %s\n", message.c_str());
  EXPECT(message.find(check_options().expect) != std::string::npos, message);
}

}  // namespace

std::vector<Check> communication_checks() {
  return {{"learns", tower_learns, true},
          {"goes_on", goes_on, true},
          {"local_sgd", local_sgd, true},
          {"scope_of_local_sgd", local_sgd_scope, true},
          {"scope_is_refused", local_sgd_scope_refused, true},
          {"prepare_is_refused", refused, true}};
}
