// When the steps of a GradientFuture run, and what a hook must not do.
#include "strategy/comm_hook.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "strategy/gradient_compression.h"

namespace coupler::strategy {
namespace {

using Events = std::vector<std::string>;

// Work of a number of collectives.
class NotedWork final : public GradientWork {
 public:
  NotedWork(Events& events, std::string name, int steps)
      : events_(events), name_(std::move(name)), left_(steps) {
    step();
  }
  bool more() const override { return left_ > 0; }
  void step() override {
    --left_;
    events_.push_back(name_ + " sends");
  }
  bool done() override { return left_ == 0; }
  void finish() override {
    while (more()) step();
    events_.push_back(name_ + " ends");
  }

 private:
  Events& events_;
  const std::string name_;
  int left_;
};

GradientFuture future_of(Events& events, const std::string& name, double value, int steps = 1) {
  return GradientFuture(std::make_shared<GradientChain>(
      std::make_shared<NotedWork>(events, name, steps), at::full({}, value)));
}

double number(const at::Tensor& tensor) { return tensor.item<double>(); }

TEST(GradientFuture, LocalSteps_RunAtTheEnd) {
  Events events;
  const GradientFuture future = future_of(events, "a", 3).then([&](const at::Tensor& value) {
    events.emplace_back("local");
    EXPECT_TRUE(GradientChain::in_local_step());
    return value + 1;
  });
  GradientChain& chain = *future.chain();
  EXPECT_FALSE(chain.more());
  EXPECT_TRUE(chain.done());
  EXPECT_EQ(events, Events{"a sends"});
  chain.finish();
  EXPECT_EQ(events, (Events{"a sends", "a ends", "local"}));
  EXPECT_EQ(number(chain.value()), 4);
  EXPECT_FALSE(GradientChain::in_local_step());
}

TEST(GradientFuture, StepThatCommunicates_RunsInTheNextStepWithTheLocalOnesBeforeIt) {
  Events events;
  const GradientFuture future = future_of(events, "a", 3)
                                    .then([&](const at::Tensor& value) -> at::Tensor {
                                      events.emplace_back("local");
                                      return value * 10;
                                    })
                                    .then([&](const at::Tensor& value) {
                                      EXPECT_FALSE(GradientChain::in_local_step());
                                      return future_of(events, "b", number(value) + 1)
                                          .then([&](const at::Tensor& inner) -> at::Tensor {
                                            events.emplace_back("inner");
                                            return inner * 2;
                                          });
                                    })
                                    .then([&](const at::Tensor& value) -> at::Tensor {
                                      events.emplace_back("last");
                                      return value + 0.5;
                                    });
  GradientChain& chain = *future.chain();
  EXPECT_TRUE(chain.more());
  EXPECT_FALSE(chain.done());
  chain.step();
  EXPECT_EQ(events, (Events{"a sends", "a ends", "local", "b sends"}));
  EXPECT_FALSE(chain.more());
  EXPECT_TRUE(chain.done());
  EXPECT_EQ(number(future.wait()), 62.5);
  EXPECT_EQ(events, (Events{"a sends", "a ends", "local", "b sends", "b ends", "inner", "last"}));
}

TEST(GradientFuture, WorkOfSeveralCollectives_TakesOneForEachStep) {
  Events events;
  const GradientFuture future = future_of(events, "a", 1, /*steps=*/3);
  GradientChain& chain = *future.chain();
  EXPECT_EQ(events.size(), 1U);
  chain.step();
  EXPECT_EQ(events.size(), 2U);
  EXPECT_TRUE(chain.more());
  chain.step();
  EXPECT_FALSE(chain.more());
  chain.finish();
  EXPECT_EQ(events.back(), "a ends");
}

TEST(GradientFuture, Value_IsThereAtOnce) {
  const GradientFuture future(at::full({}, 2.0));
  EXPECT_TRUE(future.chain()->done());
  EXPECT_EQ(number(future.wait()), 2);
  EXPECT_EQ(number(future.then([](const at::Tensor& value) { return value * 3; }).wait()), 6);
}

TEST(GradientFuture, StepThatReturnsItsOwnFuture_IsRefused) {
  const GradientFuture future(at::full({}, 2.0));
  future.then([future](const at::Tensor&) { return future; });
  try {
    future.wait();
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("returned that same future"), std::string::npos)
        << error.what();
  }
}

TEST(GradientFuture, StepThatThrows_LeavesNoLocalStepBehind) {
  const GradientFuture future(at::full({}, 2.0));
  future.then([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
  EXPECT_THROW(future.wait(), std::runtime_error);
  EXPECT_FALSE(GradientChain::in_local_step());
}

// The bucket of one process: 3 gradients and padding.
struct HookedJob {
  std::string error_of(CommHook hook) {
    const auto named =
        std::make_shared<NamedHook>(NamedHook{.name = "h", .function = std::move(hook)});
    HookWork work(named, bucket());
    try {
      work.finish();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::shared_ptr<HookedBucket> bucket() {
    const config::BackendConfig defaults;
    const auto comm =
        comm::Communicator::create({.plugin = plugin::Plugin::single(), .backend = &defaults});
    reduction = whole_reduction(memory);
    return std::make_shared<HookedBucket>(
        BucketContent{.model = "Net",
                      .index = 2,
                      .buffer = memory,
                      .result = memory,
                      .padding = {memory.narrow(0, 3, 1)}},
        comm, [this, comm] { return std::make_shared<ReductionWork>(*comm, *reduction, true); });
  }
  at::Tensor memory = at::tensor({1.0F, 2.0F, 3.0F, 0.0F});
  std::unique_ptr<BucketReduction> reduction;
};

TEST(CommHook, Value_BecomesTheGradientsAndPaddingStaysZero) {
  HookedJob job;
  EXPECT_EQ(job.error_of([](GradientBucket& bucket) { return bucket.buffer() + 1; }), "");
  EXPECT_TRUE(at::equal(job.memory, at::tensor({2.0F, 3.0F, 4.0F, 0.0F})));
  EXPECT_EQ(job.error_of([](GradientBucket& bucket) { return bucket.average(); }), "");
  EXPECT_TRUE(at::equal(job.memory, at::tensor({2.0F, 3.0F, 4.0F, 0.0F})));
}

TEST(CommHook, WrongHook_IsNamedWithItsBucket) {
  const std::string place = "the comm hook 'h' failed on rank 0, in bucket 2 of the model 'Net': ";
  const auto expect_error = [&](const CommHook& hook, const std::string& words) {
    HookedJob job;
    const std::string message = job.error_of(hook);
    EXPECT_EQ(message.find(place), 0U) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_TRUE(at::equal(job.memory.narrow(0, 0, 3), at::tensor({1.0F, 2.0F, 3.0F})));
  };
  expect_error([](GradientBucket&) { return at::zeros({3}); },
               "it returned Float [3] on cpu, but the reduced gradients are Float [4] on cpu");
  expect_error([](GradientBucket&) { return at::zeros({4}, at::kDouble); },
               "it returned Double [4] on cpu");
  expect_error([](GradientBucket&) { return at::Tensor(); }, "it returned an undefined tensor");
  expect_error([](GradientBucket&) -> GradientFuture { throw std::runtime_error("no luck"); },
               "no luck");
  expect_error([](GradientBucket&) -> GradientFuture { throw 7; },
               "it threw something that is not a std::exception");
  expect_error([](GradientBucket& bucket) { return at::mm(bucket.buffer(), bucket.buffer()); },
               "matrix");
  expect_error(
      [](GradientBucket& bucket) {
        bucket.average();
        return bucket.average();
      },
      "average() was called twice for one bucket");
  expect_error(
      [](GradientBucket& bucket) {
        return bucket.all_reduce(at::ones({4})).then([&bucket](const at::Tensor& sum) {
          return bucket.all_reduce(sum.clone()).wait();
        });
      },
      "was called by a step that returns a tensor");
}

TEST(CommHook, CollectiveAfterTheReduction_IsRefused) {
  HookedJob job;
  const auto bucket = job.bucket();
  try {
    bucket->all_reduce(at::ones({4}), ReduceOp::kSum);
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("while no hook reduces it"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coupler::strategy
