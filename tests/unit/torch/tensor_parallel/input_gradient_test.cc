// Who gives parts of an input's gradient, and which of them are summed when.
#include "tensor_parallel/input_gradient.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/comm/ranks.h"

namespace coupler::tensor_parallel {
namespace {

// The other rank's values do not exist: a sum leaves this rank's.
InputGradientPtr of_two_ranks() {
  return c10::make_intrusive<InputGradient>(comm::Communicator::made_up("layers", 2), std::nullopt);
}

at::Tensor part(double value) { return at::full({3}, value); }

TEST(InputGradient, AllLayersGive_TheSumOfTheirParts) {
  const auto gradient = of_two_ranks();
  for (int layer = 0; layer < 2; ++layer) {
    gradient->take();
    gradient->promise();
  }
  for (int backward = 0; backward < 2; ++backward) {  // of a graph that is kept
    EXPECT_FALSE(gradient->give(part(1)).defined());
    EXPECT_FALSE(gradient->give(part(2)).defined());
    EXPECT_TRUE(at::equal(gradient->finish({}), part(3)));
  }
}

TEST(InputGradient, TheLastPart_StartsTheSum) {
  testing::expect_no_error(testing::run_ranks(2, [](comm::Communicator& of_rank) {
    const auto gradient = c10::make_intrusive<InputGradient>(
        Group(&of_rank, [](comm::Communicator*) {}), std::nullopt);
    gradient->take();
    gradient->promise();
    const at::Tensor own = part(1 + of_rank.rank());
    EXPECT_FALSE(gradient->give(own).defined());
    of_rank.run(testing::barrier());  // ends after what was started before it
    EXPECT_TRUE(at::equal(own, part(3))) << "not summed before finish()";
    EXPECT_TRUE(at::equal(gradient->finish({}), part(3)));
  }));
}

TEST(InputGradient, AnotherLayerDoesNotGive_PartsGoByWayOfAutograd) {
  const auto gradient = of_two_ranks();
  gradient->take();
  gradient->promise();
  gradient->take();
  const at::Tensor own = part(1);
  EXPECT_TRUE(gradient->give(own).is_same(own));
  EXPECT_TRUE(at::equal(gradient->finish(part(5)), part(5)));
}

TEST(InputGradient, BackwardOfSomeLayers_WhatTheyGave) {
  const auto gradient = of_two_ranks();
  for (int layer = 0; layer < 3; ++layer) {
    gradient->take();
    gradient->promise();
  }
  gradient->give(part(1));
  gradient->give(part(2));
  EXPECT_TRUE(at::equal(gradient->finish({}), part(3)));
  EXPECT_FALSE(gradient->finish({}).defined()) << "of no layer";
  gradient->give(part(4));
  EXPECT_TRUE(at::equal(gradient->finish(part(1)), part(5)));
}

}  // namespace
}  // namespace coupler::tensor_parallel
