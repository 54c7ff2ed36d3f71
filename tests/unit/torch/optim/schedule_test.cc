// The formulas against numbers from fixtures/make_rates.py, and the errors for wrong arguments.
#include <coupler/error.h>
#include <coupler/optimizer.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace coupler::optim {
namespace {

constexpr double kBase = 0.01;

struct ScheduleFormulas : ::testing::Test {
  torch::optim::SGD optimizer{std::vector<at::Tensor>{at::zeros({1})},
                              torch::optim::SGDOptions(kBase)};

  void expect_rates(const Schedule& schedule, const std::vector<double>& expected) const {
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(schedule.rate(static_cast<int64_t>(step), kBase), expected[step], 1e-15)
          << schedule.name() << " at step " << step;
    }
  }
  static std::string message_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(ScheduleFormulas, Constant_IsTransformers) {
  expect_rates(constant_schedule(optimizer, {5}),
               {0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01});
  expect_rates(constant_schedule(optimizer), {0.01, 0.01});
}

TEST_F(ScheduleFormulas, Linear_IsTransformers) {
  expect_rates(
      linear_schedule(optimizer, {3, 12}),
      {0.0, 0.003333333333333333, 0.006666666666666666, 0.01, 0.008888888888888889,
       0.007777777777777778, 0.006666666666666666, 0.005555555555555556, 0.0044444444444444444,
       0.003333333333333333, 0.0022222222222222222, 0.0011111111111111111, 0.0});
}

TEST_F(ScheduleFormulas, Cosine_IsTransformers) {
  expect_rates(cosine_schedule(optimizer, {3, 12}),
               {0.0, 0.003333333333333333, 0.006666666666666666, 0.01, 0.009698463103929543,
                0.00883022221559489, 0.0075, 0.005868240888334653, 0.0041317591116653484,
                0.0025000000000000014, 0.0011697777844051104, 0.00030153689607045843, 0.0});
  expect_rates(cosine_schedule(optimizer, {0, 12}, 1.5),
               {0.01, 0.008535533905932738, 0.005, 0.0014644660940672626, 0.0,
                0.0014644660940672616, 0.004999999999999999, 0.008535533905932738, 0.01,
                0.008535533905932738, 0.005000000000000001, 0.0014644660940672666, 0.0});
}

TEST_F(ScheduleFormulas, Polynomial_IsTransformers) {
  expect_rates(polynomial_schedule(optimizer, {2, 12}),
               {0.0, 0.005, 0.01, 0.009000010000000001, 0.00800002, 0.007000029999999999,
                0.006000040000000001, 0.005000050000000001, 0.004000060000000001,
                0.0030000700000000005, 0.0020000799999999996, 0.00100009, 1e-07});
  expect_rates(
      polynomial_schedule(optimizer, {2, 12}, 1e-3, 2),
      {0.0, 0.005, 0.010000000000000002, 0.008290000000000002, 0.006760000000000002,
       0.005409999999999999, 0.004240000000000001, 0.0032500000000000003, 0.0024400000000000003,
       0.0018100000000000006, 0.0013599999999999999, 0.00109, 0.001});
}

TEST_F(ScheduleFormulas, AfterTheEnd_TheRateStays) {
  for (const int64_t step : {12, 13, 20, 100000}) {
    EXPECT_EQ(linear_schedule(optimizer, {3, 12}).rate(step, kBase), 0);
    EXPECT_EQ(cosine_schedule(optimizer, {3, 12}).rate(step, kBase), 0);
    EXPECT_EQ(polynomial_schedule(optimizer, {3, 12}, 1e-3).rate(step, kBase), 1e-3);
  }
}

TEST_F(ScheduleFormulas, WarmUpOfAllSteps_EndsAtTheBase) {
  const Schedule linear = linear_schedule(optimizer, {4, 4});
  EXPECT_EQ(linear.rate(3, kBase), 0.0075);
  EXPECT_EQ(linear.rate(4, kBase), kBase);
  EXPECT_EQ(polynomial_schedule(optimizer, {4, 4}).rate(4, kBase), kBase);
}

TEST_F(ScheduleFormulas, Lambda_MultipliesTheBase) {
  const Schedule schedule =
      lambda_schedule(optimizer, [](int64_t step) { return 1.0 / static_cast<double>(step + 1); });
  EXPECT_EQ(schedule.rate(3, kBase), kBase / 4);
}

TEST_F(ScheduleFormulas, WrongSteps_NameValueAndRule) {
  EXPECT_EQ(
      message_of([&] {
        linear_schedule(optimizer, {0, 0});
      }),
      "linear_schedule: total_steps is 0, but must be above 0\n  hint: give steps per epoch times "
      "epochs, in the unit that the schedule counts");
  EXPECT_EQ(message_of([&] {
              cosine_schedule(optimizer, {-1, 5});
            }),
            "cosine_schedule: warmup_steps is -1, but must be 0 or more");
  EXPECT_EQ(message_of([&] {
              polynomial_schedule(optimizer, {6, 5});
            }),
            "polynomial_schedule: warmup_steps is 6, but must be at most total_steps, which is 5");
  EXPECT_EQ(message_of([&] {
              constant_schedule(optimizer, {0, -2});
            }),
            "constant_schedule: total_steps is -2, but must be 0 (no end) or more");
}

TEST_F(ScheduleFormulas, WrongNumbers_NameValueAndRule) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of([&] {
              cosine_schedule(optimizer, {0, 5}, 0);
            }),
            "cosine_schedule: cycles is 0, but must be finite and above 0");
  EXPECT_EQ(message_of([&] {
              polynomial_schedule(optimizer, {0, 5}, 1e-7, nan);
            }),
            "polynomial_schedule: power is nan, but must be finite and above 0");
  EXPECT_EQ(message_of([&] {
              polynomial_schedule(optimizer, {0, 5}, -1);
            }),
            "polynomial_schedule: end_rate is -1, but must be finite and at least 0");
  const Schedule rising = polynomial_schedule(optimizer, {2, 5}, 0.02);
  EXPECT_EQ(
      message_of([&] { rising.rate(0, kBase); }),
      "polynomial_schedule: end_rate is 0.02, but must be at most the optimizer's rate, which "
      "is 0.01");
  EXPECT_EQ(message_of([&] { lambda_schedule(optimizer, nullptr); }),
            "lambda_schedule: the function is empty");
}

}  // namespace
}  // namespace coupler::optim
