// The arguments of backward, clip_grad_norm and step, against LibTorch on the joined batch.
#include <coupler/coupler.h>

#include <cmath>
#include <limits>
#include <memory>

#include "check.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;

constexpr int64_t kJoinedRows = 24;  // divisible by world sizes 1 to 4
constexpr double kMaximum = std::numeric_limits<double>::infinity();  // as a type of norm

// A prepared model and its copy, which LibTorch trains alone.
struct Twins {
  explicit Twins(Accelerator& accelerator) : accelerator(accelerator) {
    torch::manual_seed(11);
    Net model;
    net = accelerator.prepare(model);
    torch::manual_seed(11);
    reference = Net();
  }
  torch::Tensor own_loss(int step) {
    return loss_of(net, own_part(joined_batch(step, kJoinedRows), accelerator.rank(),
                                 accelerator.world_size()));
  }
  torch::Tensor joined_loss(int step) {
    return loss_of(reference, joined_batch(step, kJoinedRows));
  }
  void expect_equal_gradients(const std::string& what) {
    for (size_t i = 0; i < trainable(net).size(); ++i) {
      const torch::Tensor ours = accelerator.gradient(trainable(net)[i]);
      const torch::Tensor theirs = trainable(reference)[i].grad();
      EXPECT(ours.defined() == theirs.defined(), what + ": is gradient " + std::to_string(i) +
                                                     " there? ours " +
                                                     std::to_string(ours.defined()));
      if (!ours.defined()) continue;
      EXPECT(torch::allclose(ours, theirs, 1e-8, 1e-10),
             what + ": gradient " + std::to_string(i) + " differs");
    }
  }

  Accelerator& accelerator;
  Net net{nullptr}, reference{nullptr};
};

void norm_types(Accelerator& accelerator) {
  for (const double type : {1.0, 2.0, 3.5, kMaximum}) {
    Twins twins(accelerator);
    accelerator.backward(twins.own_loss(0));
    twins.joined_loss(0).backward();
    const double norm = accelerator.clip_grad_norm(twins.net, 0.01, type);
    const double expected =
        torch::nn::utils::clip_grad_norm_(trainable(twins.reference), 0.01, type);
    EXPECT(std::abs(norm - expected) < 1e-6 * expected,
           "the norm is " + std::to_string(norm) + ", expected " + std::to_string(expected));
    twins.expect_equal_gradients("norm type " + std::to_string(type));
  }
}

// Only these are measured and scaled.
void norm_of_some(Accelerator& accelerator) {
  for (const double type : {2.0, kMaximum}) {
    Twins twins(accelerator);
    accelerator.backward(twins.own_loss(0));
    twins.joined_loss(0).backward();
    const auto some = [](Net& net) {
      return std::vector<torch::Tensor>{net->hidden->bias, net->embedding->weight};
    };
    const double norm = accelerator.clip_grad_norm(some(twins.net), 0.01, type);
    const double expected = torch::nn::utils::clip_grad_norm_(some(twins.reference), 0.01, type);
    EXPECT(std::abs(norm - expected) < 1e-6 * expected, "the norm is " + std::to_string(norm));
    twins.expect_equal_gradients("some parameters");
  }
}

void norm_of_two_models(Accelerator& accelerator) {
  Twins one(accelerator), two(accelerator);
  accelerator.backward(one.own_loss(0) + 3 * two.own_loss(1));
  (one.joined_loss(0) + 3 * two.joined_loss(1)).backward();
  const auto both = [](Net& a, Net& b) {
    return std::vector<torch::Tensor>{a->hidden->weight, b->embedding->weight, b->hidden->bias};
  };
  const double norm = accelerator.clip_grad_norm(both(one.net, two.net), 0.01);
  const double expected =
      torch::nn::utils::clip_grad_norm_(both(one.reference, two.reference), 0.01);
  EXPECT(std::abs(norm - expected) < 1e-6 * expected, "the norm is " + std::to_string(norm));
  one.expect_equal_gradients("the first model");
  two.expect_equal_gradients("the second model");
}

// On one rank only; a maximum could drop it.
void not_finite(Accelerator& accelerator) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kMaximum}) {
    for (const double type : {1.0, 2.0, kMaximum}) {
      Twins twins(accelerator);
      const bool here = accelerator.rank() == accelerator.world_size() - 1;
      accelerator.backward(twins.own_loss(0) + twins.net->hidden->bias[0] * (here ? bad : 0.0));
      const std::vector<torch::Tensor> some = {twins.net->hidden->weight, twins.net->hidden->bias};
      for (const std::string& message :
           {error_of([&] { accelerator.clip_grad_norm(twins.net, 1.0, type); }),
            error_of([&] { accelerator.clip_grad_norm(some, 1.0, type); })}) {
        EXPECT(message.find("'hidden.bias' has infinite or NaN elements") != std::string::npos,
               message);
      }
    }
  }
}

void retained_graph(Accelerator& accelerator) {
  Twins twins(accelerator);
  const torch::Tensor own = twins.own_loss(0), joined = twins.joined_loss(0);
  accelerator.backward(own, {.retain_graph = true});
  accelerator.backward(own);
  joined.backward({}, /*retain_graph=*/true);
  joined.backward();
  twins.expect_equal_gradients("two backwards");
  Twins others(accelerator);
  accelerator.backward(others.own_loss(0), {});  // not a weight of 0
  others.joined_loss(0).backward();
  others.expect_equal_gradients("no options");
}

void some_inputs(Accelerator& accelerator) {
  Twins twins(accelerator);
  accelerator.backward(twins.own_loss(0), {.inputs = {twins.net->hidden->weight}});
  twins.joined_loss(0).backward({}, false, false,
                                std::vector<torch::Tensor>{twins.reference->hidden->weight});
  twins.expect_equal_gradients("one input");
}

// The gradient of an input in the loss, as in a gradient penalty.
void graph_of_gradients(Accelerator& accelerator) {
  torch::manual_seed(3);
  torch::nn::Linear model(4, 4), reference(nullptr);
  reference = torch::nn::Linear(4, 4);
  auto net = accelerator.prepare(model);
  {
    const torch::NoGradGuard no_grad;
    accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
      reference->named_parameters()[name].copy_(value);
    });
  }
  const auto penalty = [](const torch::Tensor& gradient) { return gradient.square().sum(); };
  const torch::Tensor all =
      torch::arange(kJoinedRows * 4, torch::kFloat).reshape({kJoinedRows, 4}) / 50;
  const int64_t rows = kJoinedRows / accelerator.world_size();
  torch::Tensor x = all.narrow(0, accelerator.rank() * rows, rows).clone().requires_grad_();
  accelerator.backward(net->forward(x).tanh().sum(), {.create_graph = true, .inputs = {x}});
  EXPECT(x.grad().requires_grad(), "the gradient of an input has no graph");
  const torch::Tensor gradient = x.grad();
  x.mutable_grad().reset();
  accelerator.backward(penalty(gradient));
  torch::Tensor y = all.clone().requires_grad_();
  const torch::Tensor theirs =
      torch::autograd::grad({reference->forward(y).tanh().sum()}, {y}, {}, true, true)[0];
  penalty(theirs).backward();
  EXPECT(torch::allclose(accelerator.gradient(net->weight) * accelerator.world_size(),
                         reference->weight.grad(), 1e-4, 1e-5),
         "the gradient of the penalty differs");
}

// Without a search, a closure runs once, and the step is the usual one.
void closure_of_sgd(Accelerator& accelerator) {
  Twins twins(accelerator);
  torch::optim::SGD optimizer(trainable(twins.net), 0.1);
  torch::optim::SGD other(trainable(twins.reference), 0.1);
  auto opt = accelerator.prepare(optimizer);
  int evaluations = 0;
  torch::Tensor own, twins_loss;
  const torch::Tensor loss = opt.step([&] {
    ++evaluations;
    opt.zero_grad();
    own = twins.own_loss(0);
    twins_loss = own.detach().clone();
    accelerator.backward(own);
    return own;
  });
  const torch::Tensor expected = twins.joined_loss(0);
  expected.backward();
  other.step();
  EXPECT(evaluations == 1, "the closure ran " + std::to_string(evaluations) + " times");
  EXPECT(torch::allclose(loss, expected), "the loss is not the mean over ranks");
  EXPECT(torch::equal(own.detach(), twins_loss), "the closure's own loss was changed");
  EXPECT(!loss.requires_grad(), "the loss has a graph");
  twins.expect_equal_gradients("after step(closure)");
  accelerator.for_each_tensor(twins.net, [&](const std::string& name, const torch::Tensor& value) {
    EXPECT(torch::allclose(value, twins.reference->named_parameters()[name]), "after it: " + name);
  });
}

// The search sees the losses of all ranks.
void closure_of_lbfgs(Accelerator& accelerator) {
  accelerator.free_memory();
  Twins twins(accelerator);
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(6).line_search_fn("strong_wolfe");
  torch::optim::LBFGS optimizer(trainable(twins.net), options);
  torch::optim::LBFGS other(trainable(twins.reference), options);
  std::unique_ptr<coupler::Optimizer> opt;
  try {
    opt = std::make_unique<coupler::Optimizer>(accelerator.prepare(optimizer));
  } catch (const coupler::Error& error) {
    const std::string message = error.what();
    EXPECT(message.find("LBFGS needs all parameters at once") != std::string::npos ||
               message.find("the state of this optimizer cannot be offloaded") != std::string::npos,
           message);
    return;
  }
  {
    const auto alone = accelerator.no_sync(twins.net);
    const torch::Tensor one = torch::ones({});
    if (accelerator.world_size() > 1) {
      const std::string message = error_of([&] { opt->step([&] { return one; }); });
      EXPECT(message.find("step(closure) while gradients are not averaged") != std::string::npos,
             message);
    }
  }
  for (int step = 0; step < 3; ++step) {
    opt->step([&] {
      opt->zero_grad();
      const torch::Tensor loss = twins.own_loss(step);
      accelerator.backward(loss);
      return loss;
    });
    other.step([&] {
      other.zero_grad();
      const torch::Tensor loss = twins.joined_loss(step);
      loss.backward();
      return loss;
    });
  }
  for (size_t i = 0; i < trainable(twins.net).size(); ++i) {
    EXPECT(torch::allclose(trainable(twins.net)[i], trainable(twins.reference)[i], 1e-6, 1e-8),
           "parameter " + std::to_string(i) + " differs from LibTorch's");
    expect_same_everywhere(accelerator, trainable(twins.net)[i], "a parameter after LBFGS");
  }
  // Its history is part of a checkpoint.
  const SharedFolder folder(accelerator);
  const std::string saved = accelerator.save_state(folder.path());
  const auto search = [&](int step) {
    opt->step([&] {
      opt->zero_grad();
      const torch::Tensor loss = twins.own_loss(step);
      accelerator.backward(loss);
      return loss;
    });
    return torch::cat({twins.net->hidden->weight.flatten(), twins.net->hidden->bias}).clone();
  };
  const torch::Tensor expected = search(3), later = search(4);
  optimizer.param_groups()[0].options().set_lr(0.1);
  accelerator.load_state(saved);
  EXPECT(torch::equal(search(3), expected) && torch::equal(search(4), later),
         "LBFGS continues differently after load_state");
  accelerator.free_memory();
}

template <class Optimizer, class Options>
void add_groups_to(Accelerator& accelerator, const Options& first, const Options& second) {
  accelerator.free_memory();
  Twins twins(accelerator);
  const auto ours = trainable(twins.net), theirs = trainable(twins.reference);
  Optimizer optimizer({ours[1]}, first), other({theirs[1]}, first);
  auto opt = accelerator.prepare(optimizer);
  auto schedule = accelerator.prepare(coupler::linear_schedule(optimizer, {.total_steps = 100}));
  const auto step = [&](int number) {
    accelerator.backward(twins.own_loss(number));
    twins.joined_loss(number).backward();
    opt.step();
    other.step();
    opt.zero_grad();
    other.zero_grad();
    schedule.step();
    for (size_t g = 0; g < other.param_groups().size(); ++g)
      other.param_groups()[g].options().set_lr(schedule.rates()[g]);
  };
  const auto expect_equal = [&](const std::string& what) {
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT(torch::allclose(ours[i], theirs[i], 1e-7, 1e-9),
             what + ": parameter " + std::to_string(i) + " differs from LibTorch's");
    }
  };
  step(0);
  step(1);
  expect_equal("before");
  // With the gradients of the steps before: neither optimizer has dropped them.
  opt.add_param_group(
      torch::optim::OptimizerParamGroup({ours[0], ours[2]}, std::make_unique<Options>(second)));
  other.add_param_group(
      torch::optim::OptimizerParamGroup({theirs[0], theirs[2]}, std::make_unique<Options>(second)));
  step(2);
  expect_equal("added");
  opt.add_param_group(torch::optim::OptimizerParamGroup({ours[3]}));
  other.add_param_group(torch::optim::OptimizerParamGroup({theirs[3]}));
  step(3);
  expect_equal("added again");
  const SharedFolder folder(accelerator);
  const std::string saved = accelerator.save_state(folder.path());
  step(4);
  const std::vector<double> rates = schedule.rates();
  EXPECT(rates.size() == 3 && std::abs(rates[0] - first.get_lr() * 0.95) < 1e-12 &&
             rates[1] < second.get_lr(),
         "the schedule does not set the rates of added groups");
  expect_equal("before loading");
  accelerator.load_state(saved);
  accelerator.backward(twins.own_loss(4));
  opt.step();
  opt.zero_grad();
  expect_equal("after loading");
  const size_t groups = opt.param_groups().size();
  const auto refused = [&](torch::optim::OptimizerParamGroup group, const std::string& part) {
    const std::string said = error_of([&] { opt.add_param_group(group); });
    EXPECT(said.find(part) != std::string::npos, "'" + part + "' is not in: " + said);
    EXPECT(opt.param_groups().size() == groups, "a refused group was added");
  };
  using Group = torch::optim::OptimizerParamGroup;
  refused(Group({ours[0]}), "is in two groups of the optimizer");
  refused(Group({twins.net->frozen}), "'frozen' was frozen when its model was prepared");
  refused(Group({torch::zeros({3}, torch::requires_grad())}), "[3] belongs to no prepared model");
  refused(Group({}, std::make_unique<torch::optim::LBFGSOptions>(1)),
          "the group's options are torch::optim::LBFGSOptions");
  accelerator.free_memory();
}

void groups_are_added(Accelerator& accelerator) {
  using namespace torch::optim;
  add_groups_to<AdamW>(accelerator, AdamWOptions(1e-2), AdamWOptions(3e-3).amsgrad(true));
  add_groups_to<SGD>(accelerator, SGDOptions(1e-2), SGDOptions(3e-3).momentum(0.9));
}

// These keep their own state, which cannot be offloaded.
void groups_are_added_to_rmsprop(Accelerator& accelerator) {
  using namespace torch::optim;
  try {
    add_groups_to<RMSprop>(accelerator, RMSpropOptions(1e-2), RMSpropOptions(3e-3).momentum(0.9));
  } catch (const coupler::Error& error) {
    const std::string message = error.what();
    EXPECT(message.find("the state of this optimizer cannot be offloaded") != std::string::npos,
           message);
    accelerator.free_memory();
  }
}

void wrong_arguments(Accelerator& accelerator) {
  const auto expect_words = [](const std::string& message, const std::string& words) {
    EXPECT(message.find(words) != std::string::npos, "'" + message + "' lacks '" + words + "'");
  };
  Twins twins(accelerator);
  torch::optim::SGD optimizer(trainable(twins.net), 0.1);
  auto opt = accelerator.prepare(optimizer);
  const torch::Tensor loss = twins.own_loss(0);
  expect_words(error_of([&] { accelerator.clip_grad_norm(twins.net, 1.0, 0); }),
               "norm_type is 0, but must be above 0");
  expect_words(error_of([&] {
                 accelerator.clip_grad_norm({torch::ones({2, 3})}, 1.0);
               }),
               "parameters[0], a tensor of shape [2, 3], is not a parameter of a prepared model");
  expect_words(error_of([&] { accelerator.clip_grad_norm({torch::Tensor()}, 1.0); }),
               "parameters[0], an undefined tensor, is not a parameter");
  expect_words(error_of([&] { opt.step(std::function<torch::Tensor()>()); }),
               "step(closure) with an empty function");
  expect_words(error_of([&] { accelerator.backward(loss, {.inputs = {torch::ones({2})}}); }),
               "inputs[0] does not require a gradient");
  expect_words(error_of([&] { accelerator.backward(loss, {.inputs = {loss}}); }),
               "inputs[0] is not a leaf of the graph");
  expect_words(error_of([&] { opt.step([] { return torch::Tensor(); }); }),
               "the closure of step returned an undefined tensor");
  const auto window = accelerator.accumulate(twins.net);
  expect_words(error_of([&] { opt.step([&] { return loss; }); }),
               "step(closure) inside accelerator.accumulate");
}

}  // namespace

std::vector<Check> step_argument_checks() {
  return {
      {"norm_types", norm_types},
      {"norm_of_some", norm_of_some},
      {"norm_of_two_models", norm_of_two_models},
      {"not_finite", not_finite},
      {"retained_graph", retained_graph},
      {"some_inputs", some_inputs},
      {"graph_of_gradients", graph_of_gradients},
      {"closure_of_sgd", closure_of_sgd},
      {"closure_of_lbfgs", closure_of_lbfgs},
      {"groups_are_added", groups_are_added},
      {"groups_are_added_to_rmsprop", groups_are_added_to_rmsprop},
      {"wrong_arguments", wrong_arguments},
  };
}
