// Training over a sharding plugin equals training one process on the joined batch, whatever the
// training loop does: clipping, accumulation, groups with their own rates, several models at once.
#include <cstdio>

#include "tower.h"

namespace {

using coupler::Accelerator;

constexpr int kSteps = 20;
constexpr double kLoss = 1e-5;  // relative
constexpr double kWeight = 2e-4;

void losses_of_twenty_steps(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  for (int step = 0; step < kSteps; ++step) {
    const auto losses = pair.step(step);
    expect_relative(losses.ours, losses.reference, kLoss, "loss " + std::to_string(step));
  }
}

// With a limit that always clips, and one that never does.
void norm_is_global(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  for (int step = 0; step < kSteps; ++step) {
    const double limit = step % 2 == 0 ? 0.05 : 1e6;
    double reference = 0;
    const auto losses = pair.step(step, [&](bool ours) {
      if (!ours) {
        reference = torch::nn::utils::clip_grad_norm_(distinct(pair.reference), limit);
        return;
      }
      expect_relative(accelerator.clip_grad_norm(pair.net, limit), reference, 1e-5, "the norm");
      expect_near(accelerator.gradient(pair.net->in->weight), pair.reference->in->weight.grad(),
                  1e-6, "a clipped gradient");
    });
    expect_relative(losses.ours, losses.reference, kLoss, "loss " + std::to_string(step));
  }
}

void values_are_clipped(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  for (int step = 0; step < 5; ++step) {
    pair.step(step, [&](bool ours) {
      if (!ours) return torch::nn::utils::clip_grad_value_(distinct(pair.reference), 1e-3);
      accelerator.clip_grad_value(pair.net, 1e-3);
      const auto gradient = accelerator.gradient(pair.net->out->weight);
      EXPECT(gradient.abs().max().item<float>() == 1e-3F, "nothing was clipped");
      expect_near(gradient, pair.reference->out->weight.grad(), 1e-6, "a clipped gradient");
    });
  }
  expect_near_models(accelerator, pair.net, pair.reference, kWeight);
}

// Two groups with their own options; the rate of one changes during training.
void groups_keep_their_options(Accelerator& accelerator) {
  Pair pair(accelerator, [](const std::vector<torch::Tensor>& listed) {
    std::vector<torch::Tensor> all = listed;
    if (all.back().is_same(all[0])) all.pop_back();  // the tied one is already in the first group
    auto slow = std::make_unique<torch::optim::SGDOptions>(0.01);
    slow->weight_decay(0.1);
    auto fast = std::make_unique<torch::optim::SGDOptions>(0.1);
    fast->momentum(0.9);
    const auto half = all.begin() + 3;
    return std::make_unique<torch::optim::SGD>(
        std::vector<torch::optim::OptimizerParamGroup>{
            {std::vector(all.begin(), half), std::move(slow)},
            {std::vector(half, all.end()), std::move(fast)}},
        torch::optim::SGDOptions(1));
  });
  const auto options_of = [](auto& optimizer, size_t group) -> torch::optim::SGDOptions& {
    return static_cast<torch::optim::SGDOptions&>(optimizer.param_groups().at(group).options());
  };
  EXPECT(pair.optimizer->param_groups().size() == 2, "there are not two groups");
  EXPECT(options_of(*pair.optimizer, 0).weight_decay() == 0.1 &&
             options_of(*pair.optimizer, 1).momentum() == 0.9,
         "the groups' options have changed");
  for (int step = 0; step < kSteps; ++step) {
    options_of(*pair.optimizer, 1).lr(0.1 / (1 + step));
    options_of(*pair.reference_optimizer, 1).lr(0.1 / (1 + step));
    const auto losses = pair.step(step);
    expect_relative(losses.ours, losses.reference, kLoss, "loss " + std::to_string(step));
  }
  expect_near_models(accelerator, pair.net, pair.reference, 1e-5);
}

// Two backwards without synchronization, then one with it: in between each rank has its own full
// gradients, and the step uses the mean over ranks of the sums.
void accumulation_without_sync(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  const int rank = accelerator.rank(), world_size = accelerator.world_size();
  for (int step = 0; step < 4; ++step) {
    pair.optimizer->zero_grad();
    pair.reference_optimizer->zero_grad();
    Tower alone = copy_of(pair.net);
    for (int part = 0; part < 3; ++part) {
      const Batch joined = joined_batch(10 * step + part, kTowerRows);
      const Batch mine = own_part(joined, rank, world_size);
      tower_loss(pair.reference, joined).backward();
      tower_loss(alone, mine).backward();
      if (part == 2) {
        accelerator.backward(tower_loss(pair.net, mine));
        break;
      }
      auto scope = accelerator.no_sync(pair.net);
      accelerator.backward(tower_loss(pair.net, mine));
      for (const auto& name : {"in.weight", "tokens.weight", "norm.bias"}) {
        expect_near(accelerator.gradient(pair.net->named_parameters()[name]),
                    alone->named_parameters()[name].grad(), 1e-6,
                    std::string("this rank's own gradient of ") + name);
      }
    }
    for (const auto& name : {"in.weight", "tokens.weight", "norm.bias"}) {
      expect_near(accelerator.gradient(pair.net->named_parameters()[name]),
                  pair.reference->named_parameters()[name].grad(), 1e-6,
                  std::string("the mean of sums of ") + name);
    }
    pair.optimizer->step();
    pair.reference_optimizer->step();
  }
  expect_near_models(accelerator, pair.net, pair.reference, kWeight);
}

// A second backward adds to what the first has left, although the first used only a part of a unit.
void backwards_of_different_parts(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  const auto first_layers = [](Tower& net, const Batch& batch) {
    return net->in->forward(net->tokens->forward(batch.tokens)).square().mean();
  };
  for (int step = 0; step < 3; ++step) {
    pair.optimizer->zero_grad();
    pair.reference_optimizer->zero_grad();
    const Batch joined = joined_batch(step, kTowerRows);
    const Batch mine = own_part(joined, accelerator.rank(), accelerator.world_size());
    first_layers(pair.reference, joined).backward();
    tower_loss(pair.reference, joined).backward();
    accelerator.backward(first_layers(pair.net, mine));
    accelerator.backward(tower_loss(pair.net, mine));
    for (const auto& name : {"in.weight", "tokens.weight", "out.weight", "norm.bias"}) {
      expect_near(accelerator.gradient(pair.net->named_parameters()[name]),
                  pair.reference->named_parameters()[name].grad(), 1e-6,
                  std::string("the sum of two gradients of ") + name);
    }
    pair.optimizer->step();
    pair.reference_optimizer->step();
  }
  expect_near_models(accelerator, pair.net, pair.reference, kWeight);
}

// Needs training.gradient_accumulation_steps = 2. each: training.sync_each_batch is set too.
void accumulate(Accelerator& accelerator, bool each) {
  Pair pair(accelerator, adamw());
  int synchronized = 0;
  for (int step = 0; step < 2 * kSteps; ++step) {
    const Batch joined = joined_batch(step, kTowerRows);
    const auto expected = tower_loss(pair.reference, joined);
    (expected / 2).backward();
    const bool last = step % 2 == 1;
    if (last) torch::nn::utils::clip_grad_norm_(distinct(pair.reference), 0.5);
    auto scope = accelerator.accumulate(pair.net);
    const auto loss =
        tower_loss(pair.net, own_part(joined, accelerator.rank(), accelerator.world_size()));
    accelerator.backward(loss);
    if (each && !last) {
      expect_near(accelerator.gradient(pair.net->named_parameters()["in.weight"]),
                  pair.reference->named_parameters()["in.weight"].grad(), 1e-6,
                  "the mean over ranks of the first batch");
    }
    accelerator.clip_grad_norm(pair.net, 0.5);
    pair.optimizer->step();
    pair.optimizer->zero_grad();
    synchronized += accelerator.sync_gradients() ? 1 : 0;
    EXPECT(accelerator.sync_gradients() == last, "not every second step synchronizes");
    expect_relative(mean_over_ranks(accelerator, loss), expected.item<double>(), kLoss,
                    "loss " + std::to_string(step));
    if (!last) continue;
    pair.reference_optimizer->step();
    pair.reference_optimizer->zero_grad();
  }
  EXPECT(synchronized == kSteps, "the number of synchronized steps is wrong");
}

void accumulate_two(Accelerator& accelerator) { accumulate(accelerator, false); }
void accumulate_two_in_step(Accelerator& accelerator) { accumulate(accelerator, true); }

void frozen_stays(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  const auto bias = pair.reference->mid->bias.detach().clone();
  const auto weight = pair.reference->mid->weight.detach().clone();
  for (int step = 0; step < 5; ++step) pair.step(step);
  accelerator.for_each_tensor(pair.net, [&](const std::string& name, const torch::Tensor& value) {
    if (name == "mid.bias") EXPECT(torch::equal(value, bias), "a frozen parameter changed");
    if (name == "mid.weight") EXPECT(!torch::equal(value, weight), "its neighbor did not change");
  });
  EXPECT(!pair.net->mid->bias.requires_grad(), "the frozen parameter is no longer frozen");
  EXPECT(!accelerator.gradient(pair.net->mid->bias).defined(), "a frozen parameter has a gradient");
}

// Accessed through the name in another module: still one tensor, which both see.
void tied_stay_tied(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  for (int step = 0; step < 3; ++step) pair.step(step);
  const auto names = pair.net->head->named_parameters(/*recurse=*/false);
  const torch::Tensor& other = names["weight"];
  EXPECT(other.is_same(pair.net->tokens->weight), "the tied weights have become two tensors");
  expect_near(other.detach(), pair.reference->tokens->weight, kWeight, "the tied weight");
}

struct GanImpl : torch::nn::Module {
  GanImpl(int64_t from, int64_t hidden, int64_t to)
      : first(register_module("first", torch::nn::Linear(from, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, to))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Gan);

// Generator and critic, each with an optimizer, prepared in one call. The generator's backward goes
// through the critic, whose gradients are then discarded.
void two_models(Accelerator& accelerator) {
  torch::manual_seed(accelerator.rank());
  Gan generator(4, 9, 6), critic(6, 7, 1);
  torch::optim::Adam make_better(generator->parameters(), torch::optim::AdamOptions(1e-2));
  torch::optim::SGD judge_better(critic->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  auto [g, d, opt_g, opt_d] = accelerator.prepare(generator, critic, make_better, judge_better);
  Gan reference_g(4, 9, 6), reference_d(6, 7, 1);
  const auto take = [](Gan& from, Gan& to) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < to->parameters().size(); ++i) {
      to->parameters()[i].copy_(from->parameters()[i]);
    }
  };
  take(g, reference_g);
  take(d, reference_d);
  torch::optim::Adam reference_opt_g(reference_g->parameters(), torch::optim::AdamOptions(1e-2));
  torch::optim::SGD reference_opt_d(reference_d->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.5));
  const auto turn = [](Gan& make, Gan& judge, auto& opt_make, auto& opt_judge,
                       const torch::Tensor& noise, const torch::Tensor& real,
                       const auto& backward) {
    opt_judge.zero_grad();
    const auto judged =
        torch::softplus(-judge(real)).mean() + torch::softplus(judge(make(noise).detach())).mean();
    backward(judged);
    opt_judge.step();
    opt_make.zero_grad();
    const auto made = torch::softplus(-judge(make(noise))).mean();
    backward(made);
    opt_make.step();
    return std::pair(judged.detach(), made.detach());
  };
  const int64_t rows = kTowerRows / accelerator.world_size();
  for (int step = 0; step < kSteps; ++step) {
    auto random = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const auto noise = torch::randn({kTowerRows, 4}, random);
    const auto real = torch::randn({kTowerRows, 6}, random) + 1;
    const auto mine = [&](const torch::Tensor& all) {
      return all.narrow(0, accelerator.rank() * rows, rows);
    };
    const auto [judged, made] = turn(g, d, opt_g, opt_d, mine(noise), mine(real),
                                     [&](auto& loss) { accelerator.backward(loss); });
    const auto [reference_judged, reference_made] =
        turn(reference_g, reference_d, reference_opt_g, reference_opt_d, noise, real,
             [](auto& loss) { loss.backward(); });
    expect_relative(mean_over_ranks(accelerator, judged), reference_judged.item<double>(), kLoss,
                    "the critic's loss");
    expect_relative(mean_over_ranks(accelerator, made), reference_made.item<double>(), kLoss,
                    "the generator's loss");
  }
}

// Needs backend.fsdp.param_dtype = "bf16": operations see bf16, updates go to float shards. bf16
// has 8 bits, so a loss is accurate to about 2^-8, and 20 steps of 1e-5 on weights above 0.25 are
// within one unit in the last place: masters in bf16 would not change.
void bf16_with_float_masters(Accelerator& accelerator) {
  Pair pair(accelerator, adamw(1e-5));
  EXPECT(pair.net->in->weight.scalar_type() == torch::kBFloat16, "parameters are not bf16");
  std::vector<torch::Tensor> before, after;
  const auto masters = [&](std::vector<torch::Tensor>& into) {
    accelerator.for_each_tensor(pair.net, [&](const std::string&, const torch::Tensor& value) {
      EXPECT(value.scalar_type() == torch::kFloat, "a master value is not float");
      into.push_back(value.clone());
    });
  };
  masters(before);
  for (int step = 0; step < kSteps; ++step) {
    const auto losses = pair.step(step);
    expect_relative(losses.ours, losses.reference, 2e-2, "loss " + std::to_string(step));
  }
  masters(after);
  const auto moved = (after[0] - before[0]).abs().max().item<double>();
  EXPECT(moved > 2e-5 && moved < 4e-4,
         "20 steps of 1e-5 moved a weight by " + std::to_string(moved));
  EXPECT(!torch::equal(after[0], after[0].to(torch::kBFloat16).to(torch::kFloat)),
         "the masters hold bf16 values");
}

// Prints the losses' digits and a hash of all weights, for a test that compares two runs bitwise.
void print_run_with(Accelerator& accelerator, const Pair::Make& make, const std::string& kernel) {
  torch::manual_seed(3);
  Tower model;
  // Without the frozen one, which would prevent the fused kernels.
  std::vector<torch::Tensor> trainable;
  for (const auto& parameter : distinct(model)) {
    if (parameter.requires_grad()) trainable.push_back(parameter);
  }
  const auto made = make(trainable);
  torch::optim::Optimizer& optimizer = *made;
  auto [net, opt] = accelerator.prepare(model, optimizer);
  expect_kind(net->tokens->weight, optimizer);
  EXPECT(opt.description().find(kernel) == 0, opt.description());
  for (int step = 0; step < kSteps; ++step) {
    const Batch mine =
        own_part(joined_batch(step, kTowerRows), accelerator.rank(), accelerator.world_size());
    const auto loss = tower_loss(net, mine);
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", mean_over_ranks(accelerator, loss));
    accelerator.print("loss ", step, " ", text);
  }
  uint64_t hash = 14695981039346656037U;
  accelerator.for_each_tensor(net, [&](const std::string&, const torch::Tensor& value) {
    const auto whole = value.contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  });
  accelerator.print("weights ", hash);
}

void print_run(Accelerator& accelerator) {
  const auto make = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::RMSprop>(std::move(parameters),
                                                   torch::optim::RMSpropOptions(1e-2));
  };
  print_run_with(accelerator, make, "unmodified torch::optim");
}

void print_fused_run(Accelerator& accelerator) {
  print_run_with(accelerator, adamw(), "fused AdamW");
}

}  // namespace

std::vector<Check> learning_checks() {
  return {
      {"losses_of_twenty_steps", losses_of_twenty_steps},
      {"norm_is_global", norm_is_global},
      {"values_are_clipped", values_are_clipped},
      {"groups_keep_their_options", groups_keep_their_options},
      {"accumulation_without_sync", accumulation_without_sync},
      {"backwards_of_different_parts", backwards_of_different_parts},
      {"accumulate_two", accumulate_two, true},
      {"accumulate_two_in_step", accumulate_two_in_step, true},
      {"frozen_stays", frozen_stays},
      {"tied_stay_tied", tied_stay_tied},
      {"two_models", two_models},
      {"bf16_with_float_masters", bf16_with_float_masters, true},
      {"print_run", print_run, true},
      {"print_fused_run", print_fused_run, true},
  };
}
