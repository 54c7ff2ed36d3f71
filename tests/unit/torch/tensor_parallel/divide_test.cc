// Values of models that are divided when they get them: those of rank 0, whatever other ranks
// recorded.
#include "tensor_parallel/divide.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <memory>
#include <vector>

#include "core/comm/ranks.h"
#include "sharding/tensor_plan.h"
#include "strategy/model.h"
#include "tensor_parallel/divided_parameter.h"

namespace coupler::tensor_parallel {
namespace {

struct UpAndDown : torch::nn::Module {
  UpAndDown() {
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    up = register_module("up", torch::nn::Linear(8, 8));
    register_module("down", torch::nn::Linear(8, 8));
    register_buffer("scales", torch::randn({8}));
  }
  torch::nn::Linear up{nullptr};
};

// On rank 1, one weight gets its last values after all others.
std::shared_ptr<UpAndDown> built_by(int rank) {
  at::manual_seed(static_cast<uint64_t>(rank));
  auto model = std::make_shared<UpAndDown>();
  const at::NoGradGuard no_grad;
  if (rank == 1) model->up->weight.mul_(2);
  return model;
}

std::shared_ptr<UpAndDown> built_empty_by(int rank) {
  const EmptyWeights empty;
  return built_by(rank);
}

strategy::Model divided_over(const Group& group,
                             const std::vector<std::shared_ptr<UpAndDown>>& modules) {
  const Plans plans = {
      {sharding::planned_layers("up = colwise"), sharding::planned_layers("down = rowwise")}};
  strategy::Model model = strategy::describe(*modules[static_cast<size_t>(group->rank())]);
  divide(model, plans, group, {});
  return model;
}

TEST(Divide, ConstructorsOfRanksDiffer_AllHaveRank0sValues) {
  const auto whole = built_by(0);
  const std::vector<std::shared_ptr<UpAndDown>> modules = {built_empty_by(0), built_empty_by(1)};
  testing::expect_no_error(testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const Group group(&of_rank, [](comm::Communicator*) {});
    const strategy::Model model = divided_over(group, modules);
    const auto parameters = whole->named_parameters(), buffers = whole->named_buffers();
    for (const strategy::ModelParameter& parameter : model.parameters) {
      const at::Tensor value = parameters[parameter.name].detach();
      // Qualified: divided_layer_test.cc, in the same batch, has a part_of of its own.
      const at::Tensor expected =
          parameter.division ? tensor_parallel::part_of(value, *parameter.division) : value;
      EXPECT_TRUE(at::equal(parameter.tensor.detach(), expected)) << parameter.name;
    }
    for (const auto& [name, buffer] : model.buffers)
      EXPECT_TRUE(at::equal(buffer, buffers[name])) << name;
  }));
}

TEST(Divide, SomeRanksHaveValues_AllSayWhatDiffers) {
  const std::vector<std::shared_ptr<UpAndDown>> modules = {built_by(0), built_empty_by(0)};
  const auto errors = testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const Group group(&of_rank, [](comm::Communicator*) {});
    divided_over(group, modules);
  });
  testing::expect_errors(errors, ErrorCode::kMismatch,
                         {"built inside coupler::EmptyWeights: 'none' on rank 0, 'all' on rank 1"});
}

}  // namespace
}  // namespace coupler::tensor_parallel
