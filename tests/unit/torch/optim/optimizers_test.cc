// Coupler's optimizers against fixtures/optimizers.safetensors, which make_optimizers.py makes with
// PyTorch's, used alone: the kernel over flat memory runs in tests/e2e/training.
#include <coupler/error.h>
#include <coupler/optimizers.h>
#include <coupler/state_dict.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace coupler {
namespace {

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<ParameterOptimizer>(Parameters)>;

template <class Optimizer, class Options>
MakeOptimizer made(Options options) {
  return [options](Parameters parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

struct Case {
  std::string name;
  MakeOptimizer make;
  double tolerance = 1e-6;
};

std::vector<Case> cases() {
  return {
      {"nadam", made<NAdam>(NAdamOptions(0.02))},
      {"nadam_decay",
       made<NAdam>(NAdamOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1).momentum_decay(0.01))},
      {"nadam_decoupled",
       made<NAdam>(NAdamOptions(0.02).weight_decay(0.1).decoupled_weight_decay(true))},
      {"radam", made<RAdam>(RAdamOptions(0.02))},
      {"radam_decay", made<RAdam>(RAdamOptions(0.02).betas({0.8, 0.9}).weight_decay(0.1))},
      {"radam_decoupled",
       made<RAdam>(
           RAdamOptions(0.02).betas({0.8, 0.9}).weight_decay(0.1).decoupled_weight_decay(true))},
      {"adamax", made<Adamax>(AdamaxOptions(0.02))},
      {"adamax_decay", made<Adamax>(AdamaxOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1))},
      {"lion", made<Lion>(LionOptions(0.01).weight_decay(0.1))},
      {"schedule_free", made<ScheduleFreeAdamW>(ScheduleFreeAdamWOptions(0.02))},
      {"schedule_free_warmup",
       made<ScheduleFreeAdamW>(
           ScheduleFreeAdamWOptions(0.02).warmup_steps(5).weight_decay(0.1).r(0.5))},
      {"adafactor", made<Adafactor>(AdafactorOptions(0.02))},
      {"adafactor_decay",
       made<Adafactor>(
           AdafactorOptions(0.5).beta2_decay(-0.5).eps1(1e-4).eps2(1e-2).d(2).weight_decay(0.1))},
      // Products in bf16, whose order differs between versions of LibTorch.
      {"muon", made<Muon>(MuonOptions(0.02)), 5e-3},
      {"muon_rms",
       made<Muon>(MuonOptions(0.02).momentum(0.9).nesterov(false).match_rms_adamw(true)), 5e-3},
  };
}

SafeTensors golden() { return SafeTensors::open(OPTIMIZERS_GOLDEN); }

std::vector<std::string> names_of(const Case& one) {
  if (one.name.starts_with("muon")) return {"matrix"};
  return {"matrix", "vector"};
}

void expect_values(const Case& one, const Parameters& parameters, const std::string& prefix) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = prefix + "." + names_of(one)[i];
    const at::Tensor expected = golden().tensor(name);
    EXPECT_LE((parameters[i].detach() - expected).abs().max().item<double>(), one.tolerance)
        << name;
  }
}

TEST(Optimizers, UpdateAsPyTorchs) {
  for (const Case& one : cases()) {
    Parameters parameters, gradients;
    for (const std::string& name : names_of(one)) {
      parameters.push_back(golden().tensor("start." + name).clone().requires_grad_());
      gradients.push_back(golden().tensor("gradient." + name));
    }
    const auto optimizer = one.make(parameters);
    for (int64_t step = 0; step < gradients[0].size(0); ++step) {
      for (size_t i = 0; i < parameters.size(); ++i)
        parameters[i].mutable_grad() = gradients[i][step].clone();
      optimizer->step();
    }
    expect_values(one, parameters, one.name);
    if (!one.name.starts_with("schedule_free")) continue;
    optimizer->eval();
    optimizer->eval();  // changes nothing more
    expect_values(one, parameters, one.name + ".evaluated");
    EXPECT_THROW(optimizer->step(), Error);
    optimizer->train();
    expect_values(one, parameters, one.name);
  }
}

TEST(Optimizers, LeaveParametersWithoutGradientsAlone_AndCallTheClosure) {
  for (const Case& one : cases()) {
    const at::Tensor used = at::ones({2, 2}).requires_grad_(), unused = at::ones({2, 2});
    const auto optimizer = one.make({used, unused});
    const at::Tensor loss = optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor sum = used.square().sum();
      sum.backward();
      return sum;
    });
    EXPECT_EQ(loss.item<double>(), 4) << one.name;
    EXPECT_FALSE(at::equal(used, at::ones({2, 2}))) << one.name;
    EXPECT_TRUE(at::equal(unused, at::ones({2, 2}))) << one.name;
  }
}

TEST(Optimizers, OfGroups_UseTheirOptions) {
  const at::Tensor one = at::zeros({1}).requires_grad_(), two = at::zeros({1}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{one});
  groups.emplace_back(Parameters{two}, std::make_unique<LionOptions>(0.5));
  Lion optimizer(std::move(groups), LionOptions(0.25));
  // Names its decay only; the rate is the optimizer's.
  const at::Tensor three = at::ones({1}).requires_grad_();
  optimizer.add_param_group(
      {Parameters{three}, std::make_unique<LionOptions>(LionOptions().weight_decay(2))});
  for (const at::Tensor& parameter : {one, two, three}) parameter.mutable_grad() = at::ones({1});
  optimizer.step();
  EXPECT_EQ(one.item<double>(), -0.25);
  EXPECT_EQ(two.item<double>(), -0.5);
  EXPECT_EQ(three.item<double>(), 1 - 0.25 * 2 - 0.25);

  EXPECT_THROW(optimizer.add_param_group({Parameters{}, std::make_unique<NAdamOptions>()}), Error);
  EXPECT_THROW(optimizer.add_param_group({Parameters{}, std::make_unique<LionOptions>(-1)}), Error);
  EXPECT_EQ(optimizer.param_groups().size(), 3u);
}

TEST(Optimizers, WrongOptions_AreRefused_NamingThem) {
  const Parameters parameters = {at::zeros({1})};
  const auto problem_of = [&](const MakeOptimizer& make) -> std::string {
    try {
      make(parameters);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::pair<MakeOptimizer, const char*> rows[] = {
      {made<NAdam>(NAdamOptions(-1)), "parameter group 0 of the optimizer: lr is -1"},
      {made<NAdam>(NAdamOptions().momentum_decay(-1)), "momentum_decay is -1"},
      {made<RAdam>(RAdamOptions().betas({0.9, 1})), "betas has 1"},
      {made<Adamax>(AdamaxOptions().eps(std::numeric_limits<double>::quiet_NaN())), "eps is nan"},
      {made<Lion>(LionOptions().weight_decay(-0.1)), "weight_decay is -0.1"},
      {made<ScheduleFreeAdamW>(ScheduleFreeAdamWOptions().betas({0, 0.9})), "beta1 is 0"},
      {made<Adafactor>(AdafactorOptions().d(0.5)), "d is 0.5, but must be at least 1"},
      {made<Muon>(MuonOptions().momentum(-1)), "momentum is -1"},
  };
  for (const auto& [make, says] : rows)
    EXPECT_NE(problem_of(make).find(says), std::string::npos) << says << ": " << problem_of(make);
}

TEST(Optimizers, OfAVector_MuonIsRefused) {
  const at::Tensor vector = at::ones({3}).requires_grad_();
  vector.mutable_grad() = at::ones({3});
  Muon muon(Parameters{vector});
  try {
    muon.step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("shape [3] is not a matrix"), std::string::npos);
  }
}

}  // namespace
}  // namespace coupler
