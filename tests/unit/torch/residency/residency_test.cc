// Residency: which units are filled and released when, errors while filling, destruction, threads.
#include "residency/residency.h"

#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "residency/intercept.h"
#include "stack.h"

namespace coupler::residency {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): stack.h

TEST(Residency, NoPrefetch_EveryFillByTheUser) {
  Stack stack;
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  // Each layer once for forward and once for backward, except the turning point.
  EXPECT_EQ(stack.managed.memory.fill_count(), 2 * kLayers - 1);
  EXPECT_EQ(stack.managed.memory.fills_elsewhere(), 0u);
  EXPECT_EQ(stack.managed.pool.peak_bytes(), stack.managed.largest_unit());
  EXPECT_EQ(stack.managed.resident_units(), 0u);
}

TEST(Residency, RoomForAll_EachFilledOnce) {
  Stack stack({.live_bytes = 1 << 20});
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  EXPECT_EQ(stack.managed.memory.fill_count(), kLayers);
  EXPECT_EQ(stack.managed.pool.peak_bytes(), stack.managed.total_bytes());
}

TEST(Residency, RoomForThree_LongestUnusedLeaveFirst) {
  const size_t unit = Stack().managed.largest_unit();
  Stack stack({.live_bytes = 3 * unit});
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
  // Backward finds the last three layers resident.
  EXPECT_EQ(stack.managed.memory.fill_count(), 2 * kLayers - 3);
  EXPECT_EQ(stack.managed.pool.peak_bytes(), 3 * unit);
}

TEST(Residency, Sticky_StaysUntilReleased) {
  Stack stack;
  Unit& first = stack.managed.unit("0");
  first.sticky = true;
  const at::Tensor loss = stack.layers.forward(kUp);
  EXPECT_TRUE(first.resident.load());
  EXPECT_EQ(stack.managed.resident_units(), 2u);
  loss.backward();
  EXPECT_EQ(stack.managed.memory.fills_of(0), 1u);
  stack.managed.residency().release(first);
  EXPECT_FALSE(first.resident.load());
}

TEST(Residency, StickyLetGo_LeavesAndComesAgain) {
  Stack stack;
  Unit& first = stack.managed.unit("0");
  first.sticky = true;
  const at::Tensor loss = stack.layers.forward(kUp);
  stack.managed.residency().let_go(first);
  EXPECT_FALSE(first.resident.load());
  EXPECT_EQ(stack.managed.resident_units(), 1u);
  loss.backward();
  EXPECT_EQ(stack.managed.memory.fills_of(0), 2u);
}

TEST(Residency, StickyLetGoWhilePinned_LeavesAfterItsUse) {
  Stack stack;
  Unit& first = stack.managed.unit("0");
  first.sticky = true;
  stack.managed.residency().use(first);
  stack.managed.residency().let_go(first);
  EXPECT_TRUE(first.resident.load());
  Residency::unpin(first);
  stack.layers.forward(kUp);
  EXPECT_FALSE(first.resident.load());
}

TEST(Residency, FailingOnDemand_ThrownByTheOperation) {
  Stack stack;
  stack.managed.memory.before_fill = [](size_t unit) {
    if (unit == 3) throw Error(ErrorCode::kTimeout, "rank 1 never came", {.rank = 1});
  };
  try {
    stack.layers.forward(kUp);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.detail().rank, 1);
  }
  for (const auto& unit : stack.managed.residency().units()) EXPECT_EQ(unit->pins.load(), 0);
  EXPECT_FALSE(stack.managed.unit("3").resident.load());
  stack.managed.memory.before_fill = {};
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
}

TEST(Residency, FailingInBackward_ThrownByBackward) {
  Stack stack;
  const at::Tensor loss = stack.layers.forward(kUp);
  stack.managed.memory.before_fill = [](size_t) { throw Error(ErrorCode::kPeerLost, "lost"); };
  EXPECT_NE(said_by([&] { loss.backward(); }).find("lost"), std::string::npos);
  stack.managed.memory.before_fill = {};
  stack.end_pass();
  EXPECT_FLOAT_EQ(stack.pass(), stack.expected);
}

TEST(Residency, ReleaseAllWhilePinned_ThrowsNamingTheUnit) {
  Stack stack;
  {
    const auto scope = summon_full_parameters(stack.layers.at(2));
    try {
      stack.managed.residency().release_all();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("unit '2' are in use"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(stack.managed.unit("2").resident.load());
    stack.managed.residency().release(stack.managed.unit("2"));
    EXPECT_TRUE(stack.managed.unit("2").resident.load()) << "released by name while pinned";
  }
  stack.managed.residency().release_all();
  EXPECT_EQ(stack.managed.resident_units(), 0u);
}

TEST(Residency, Destroyed_ParametersThrowInsteadOfCrashing) {
  Stack stack({.prefetch = 1});
  stack.pass();
  const at::Tensor loss = stack.layers.forward(kUp);
  const at::Tensor weight = stack.layers.at(0).weight;
  const at::Tensor view = weight.detach().t();
  stack.managed.destroy();
  const auto expect_error = [](const char* what, const std::function<void()>& use) {
    const std::string message = said_by(use);
    EXPECT_NE(message.find("' were destroyed with the Accelerator"), std::string::npos)
        << what << ": " << message;
  };
  expect_error("add", [&] { weight.add(1); });
  expect_error("clone", [&] { weight.clone(); });
  expect_error("a view", [&] { view.sum(); });
  expect_error("matmul", [&] { at::matmul(weight, weight); });
  expect_error("forward", [&] { stack.layers.forward(kUp); });
  expect_error("backward", [&] { loss.backward(); });
  expect_error("data_ptr", [&] { weight.data_ptr<float>(); });
  expect_error("in place", [&] { weight.detach().zero_(); });
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({kWidth, kWidth}));
}

TEST(Residency, DestroyedWhileFetchingAhead_WaitsForIt) {
  std::atomic<bool> slow{false};
  std::atomic<int> begun{0};
  Stack stack({.prefetch = 2});
  stack.pass();
  stack.managed.memory.before_fill = [&](size_t) {
    if (!slow) return;
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  slow = true;
  stack.layers.at(0).forward(at::ones({2, kWidth}));
  ASSERT_TRUE(comes_true([&] { return begun.load() > 1; }));
  stack.managed.destroy();
  SUCCEED();
}

TEST(Residency, ValuesChanged_SeenAfterReleaseAll) {
  Stack stack({.live_bytes = 1 << 20});
  stack.pass();
  for (auto& values : stack.managed.memory.units) std::fill(values.begin(), values.end(), 0);
  EXPECT_EQ(stack.pass(), 0.0f);
}

// A source that serves a group of ranks may be told to fill another unit first.
TEST(Residency, SourceAgreesOnAnotherUnit_FilledFirst) {
  class Contrary : public HostMemorySource {
   public:
    using HostMemorySource::HostMemorySource;
    size_t agree(size_t wanted) override {
      if (first_ && wanted == 1) {
        first_ = false;
        return 0;
      }
      return wanted;
    }

   private:
    bool first_ = true;
  };
  HostMemory memory;
  BufferPool pool;
  Residency residency(std::make_unique<Contrary>(memory), pool, {});
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 2; ++i) {
    auto unit = std::make_unique<Unit>();
    unit->bytes = sizeof(float);
    unit->storages.push_back(std::make_unique<ManagedStorage>());
    parameters.push_back(make_managed(*unit->storages[0], {1}, at::kFloat));
    put_intercept(parameters.back());
    const float value = static_cast<float>(i) + 1;
    const auto* const bytes = reinterpret_cast<const char*>(&value);
    memory.units.emplace_back(bytes, bytes + sizeof value);
    residency.add(std::move(unit));
  }
  EXPECT_EQ(parameters[1].add(0).item<float>(), 2);
  ASSERT_EQ(memory.fill_count(), 2u);
  EXPECT_EQ(memory.fills()[0].unit, 0u);
  EXPECT_EQ(parameters[0].add(0).item<float>(), 1);
  EXPECT_EQ(memory.fill_count(), 2u) << "units fetched for other ranks are used";
}

// Two threads on different units with room for only one: both finish with the right results.
TEST(Residency, TwoThreadsRoomForOne_NoDeadlockRightResults) {
  for (const int prefetch : {0, 1, 2}) {
    Stack stack({.prefetch = prefetch});
    const at::Tensor x = at::ones({2, kWidth}).requires_grad_();
    const at::NoGradGuard no_grad;
    std::vector<float> expected;
    for (const size_t layer : {size_t{1}, size_t{4}}) {
      expected.push_back(stack.layers.at(layer).forward(x).sum().item<float>());
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        const at::NoGradGuard no_grad_here;
        for (int i = 0; i < 500; ++i) {
          const float sum = stack.layers.at(t == 0 ? 1 : 4).forward(x).sum().item<float>();
          wrong += sum != expected[t];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_LE(stack.managed.pool.peak_bytes(),
              static_cast<size_t>(3 + prefetch) * stack.managed.largest_unit());
    stack.end_pass();
    EXPECT_EQ(stack.managed.resident_units(), 0u);
  }
}

// release_all while threads use the model: it succeeds or reports that units are in use.
TEST(Residency, ReleasedBesideUsers_NoHangRightResults) {
  Stack stack({.prefetch = 2});
  const float expected = stack.pass();
  std::atomic<int> wrong{0}, strange{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> users;
  for (int t = 0; t < 2; ++t) {
    users.emplace_back([&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 150; ++i) wrong += stack.layers.forward(kUp).item<float>() != expected;
    });
  }
  std::thread releaser([&] {
    while (!done) {
      try {
        stack.managed.residency().release_all();
        for (const auto& unit : stack.managed.residency().units()) {
          stack.managed.residency().release(*unit);
        }
        stack.managed.residency().end_of_pass();
      } catch (const Error& error) {
        strange += error.code() != ErrorCode::kUsage;
      }
    }
  });
  for (std::thread& thread : users) thread.join();
  done = true;
  releaser.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(strange.load(), 0);
}

TEST(Intercept, ThisLibTorch_Passes) { EXPECT_NO_THROW(check_intercept()); }

TEST(Intercept, KeyAndHome_OnViewsNotOnResults) {
  Stack stack;
  const at::Tensor weight = stack.layers.at(0).weight;
  EXPECT_TRUE(has_intercept(weight));
  EXPECT_TRUE(has_intercept(weight.detach()));
  EXPECT_TRUE(has_intercept(weight.t()[0]));
  EXPECT_EQ(managed_storage_of(weight.t())->name, "0.weight");
  for (const at::Tensor& result : {weight.clone(), weight.add(1), weight.to(at::kDouble)}) {
    EXPECT_FALSE(has_intercept(result));
    EXPECT_EQ(managed_storage_of(result), nullptr);
  }
}

}  // namespace
}  // namespace coupler::residency
