// Units prefetched by the Residency's own thread.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <atomic>

#include "stack.h"

namespace coupler::residency {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): stack.h

class Prefetch : public ::testing::TestWithParam<int> {};

// Every use waits for its prefetch, so that the counts do not depend on timing.
TEST_P(Prefetch, SecondPass_FillsHappenBeforeUse) {
  Stack stack({.prefetch = GetParam()});
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  EXPECT_EQ(stack.managed.memory.fills_elsewhere(), 0u) << "nothing is known yet";
  stack.managed.memory.forget_fills();
  const auto expect_there = [&](size_t layer) {
    const Unit& unit = stack.managed.unit(std::to_string(layer));
    EXPECT_TRUE(comes_true([&] { return unit.resident.load(); }))
        << "layer " << layer << " is not prefetched";
  };
  at::Tensor x = at::ones({2, kWidth}).requires_grad_();
  for (size_t i = 0; i < kLayers; ++i) {
    if (i > 0) expect_there(i);
    x = stack.layers.at(i).forward(x).tanh();
    // Called in backward just before the layer's own.
    x.register_hook([&, i](const at::Tensor&) { expect_there(i); });
  }
  x.sum().backward();
  stack.end_pass();
  const HostMemory& memory = stack.managed.memory;
  // The first layer follows no other layer.
  EXPECT_EQ(memory.fills_elsewhere(), memory.fill_count() - 1);
  EXPECT_GE(memory.fill_count(), kLayers);
  EXPECT_LE(memory.fill_count(), 2 * kLayers - 1) << "prefetched twice, or without being used";
  EXPECT_LE(stack.managed.pool.peak_bytes(),
            static_cast<size_t>(GetParam() + 2) * stack.managed.largest_unit());
}

TEST_P(Prefetch, ManyPasses_RightResults) {
  Stack stack({.prefetch = GetParam()});
  for (int i = 0; i < 50; ++i) EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  EXPECT_LE(stack.managed.memory.fill_count(), 50 * (2 * kLayers - 1));
  EXPECT_LE(stack.managed.pool.peak_bytes(),
            static_cast<size_t>(GetParam() + 2) * stack.managed.largest_unit());
}

TEST_P(Prefetch, SourceWithoutRoom_EveryFillByTheUser) {
  Stack stack({.prefetch = GetParam()});
  stack.managed.memory.room_ahead = false;
  for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  EXPECT_EQ(stack.managed.memory.fills_elsewhere(), 0u);
}

TEST_P(Prefetch, OrderChanges_LearntAgain) {
  Stack stack({.prefetch = GetParam()});
  stack.pass();
  const std::vector<size_t> other = {0, 2, 4, 1, 3, 5};
  const float expected = stack.pass(other);
  EXPECT_FLOAT_EQ(stack.pass(other), expected);
  stack.managed.memory.forget_fills();
  at::Tensor x = at::ones({2, kWidth}).requires_grad_();
  for (size_t k = 0; k < other.size(); ++k) {
    x = stack.layers.at(other[k]).forward(x).tanh();
    if (k + 1 == other.size()) break;
    EXPECT_TRUE(comes_true([&] {
      return stack.managed.unit(std::to_string(other[k + 1])).resident.load();
    })) << "layer "
        << other[k + 1] << " is not prefetched";
  }
  EXPECT_FLOAT_EQ(x.sum().item<float>(), expected);
  stack.end_pass();
}

TEST_P(Prefetch, FailingAhead_NextUseThrowsItAndAGoodSourceWorksAgain) {
  Stack stack({.prefetch = GetParam()});
  stack.pass();
  const std::thread::id user = std::this_thread::get_id();
  std::atomic<int> failures{0};
  std::atomic<bool> burning{true};
  stack.managed.memory.before_fill = [&](size_t unit) {
    if (std::this_thread::get_id() == user || unit != 1 || !burning) return;
    ++failures;
    throw Error(ErrorCode::kPeerLost, "unit '1' has burnt");
  };
  const at::Tensor x = at::ones({2, kWidth}).requires_grad_();
  const at::Tensor y = stack.layers.at(0).forward(x);
  ASSERT_TRUE(comes_true([&] { return failures.load() > 0; }));
  // The failure is recorded shortly after it happens: poll until it appears.
  std::string message;
  EXPECT_TRUE(comes_true([&] {
    message = said_by([&] {
      stack.layers.at(1).forward(y);
      stack.layers.at(0).forward(x);
    });
    return !message.empty();
  }));
  EXPECT_NE(message.find("unit '1' has burnt"), std::string::npos) << message;
  for (const auto& unit : stack.managed.residency().units()) EXPECT_EQ(unit->pins.load(), 0);

  burning = false;
  stack.end_pass();
  said_by([&] { stack.layers.at(5).forward(x); });  // reports a pending prefetch error
  stack.end_pass();
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
}

INSTANTIATE_TEST_SUITE_P(Depths, Prefetch, ::testing::Values(1, 2));

}  // namespace
}  // namespace coupler::residency
