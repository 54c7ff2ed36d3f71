// PowerSGD against its definition in plain products and against torch's hooks, and what it must
// leave unchanged.
#include "strategy/power_sgd.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "power_sgd_golden.h"
#include "simulated_ranks.h"

namespace coupler::strategy {
namespace {

constexpr int kRanks = 3;

config::CommunicationConfig config_of(int64_t rank, int64_t start = 0, bool warm = true) {
  config::CommunicationConfig config;
  config.gradients = "powersgd";
  config.powersgd_rank = rank;
  config.powersgd_start_step = start;
  config.powersgd_warm_start = warm;
  return config;
}

// Ranks that reduce a model with a matrix [40, 6·5], a bias, and a matrix too small to compress.
struct PowerSgdJob {
  explicit PowerSgdJob(const config::CommunicationConfig& config) {
    for (int r = 0; r < kRanks; ++r) {
      flats.push_back(std::make_unique<FlatParameters>(
          std::vector<std::pair<std::string, at::Tensor>>{{"matrix", at::zeros({40, 6, 5})},
                                                          {"bias", at::zeros({40})},
                                                          {"small", at::zeros({2, 3})}},
          /*flat_gradients=*/true));
      FlatParameters& flat = *flats.back();
      const FlatGroup& group = flat.groups()[0];
      states.push_back(std::make_unique<PowerSgd>(config, flat, r == 0));
      errors.push_back(at::zeros_like(group.parameters));
      reductions.push_back(std::make_unique<PowerSgdReduction>(
          *states.back(), flat.slots(), 0, flat.slots().size(),
          group.gradients.narrow(0, 0, group.parameters.numel()),
          config.powersgd_error_feedback ? errors.back() : at::Tensor()));
    }
  }
  at::Tensor gradient(int rank, const std::string& name) {
    for (FlatSlot& slot : flats[static_cast<size_t>(rank)]->slots()) {
      if (slot.name == name) return slot.gradient;
    }
    return {};
  }
  void draw() {
    for (int r = 0; r < kRanks; ++r) {
      for (FlatSlot& slot : flats[static_cast<size_t>(r)]->slots()) slot.gradient.normal_();
    }
  }
  at::Tensor sum_of(const std::string& name) {
    at::Tensor sum = at::zeros_like(gradient(0, name));
    for (int r = 0; r < kRanks; ++r) sum += gradient(r, name);
    return sum;
  }
  void reduce() {
    for (auto& state : states) state->begin();
    reduce_together(reductions);
  }
  std::vector<std::unique_ptr<FlatParameters>> flats;
  std::vector<std::unique_ptr<PowerSgd>> states;
  std::vector<at::Tensor> errors;
  std::vector<std::unique_ptr<BucketReduction>> reductions;
};

TEST(PowerSgd, OfWhatIsReducedWhole_SumIsExact) {
  at::manual_seed(1);
  PowerSgdJob job(config_of(2));
  job.draw();
  const at::Tensor bias = job.sum_of("bias"), small = job.sum_of("small");
  const at::Tensor matrix = job.sum_of("matrix");
  job.reduce();
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(at::equal(job.gradient(r, "bias"), bias));
    EXPECT_TRUE(at::equal(job.gradient(r, "small"), small));
    EXPECT_TRUE(at::equal(job.gradient(r, "matrix"), job.gradient(0, "matrix")));
    EXPECT_FALSE(at::allclose(job.gradient(r, "matrix"), matrix));
  }
}

TEST(PowerSgd, BeforeStartStep_AllIsExact) {
  at::manual_seed(2);
  PowerSgdJob job(config_of(1, /*start=*/2));
  for (int step = 0; step < 3; ++step) {
    job.draw();
    const at::Tensor expected = job.sum_of("matrix");
    job.reduce();
    EXPECT_EQ(at::equal(job.gradient(0, "matrix"), expected), step < 2) << step;
  }
}

TEST(PowerSgd, SeveralSteps_AreThoseOfTheDefinition) {
  for (const int64_t rank : {1, 3}) {
    at::manual_seed(3);
    PowerSgdJob job(config_of(rank));
    // The sum of all ranks' gradients and residuals: every step of the algorithm is linear in it.
    at::Tensor carried = at::zeros({40, 30}, at::kDouble), factor;
    for (int step = 0; step < 5; ++step) {
      job.draw();
      const at::Tensor sum = job.sum_of("matrix").view({40, 30}).to(at::kDouble) + carried;
      job.reduce();
      if (step == 0) {  // its random start does not matter: any factor gives the span of P
        factor =
            at::mm(at::linalg_pinv(sum), job.gradient(0, "matrix").view({40, 30}).to(at::kDouble));
        factor = at::mm(factor, at::randn({30, rank}, at::kDouble));
      }
      const at::Tensor p = std::get<0>(at::linalg_qr(at::mm(sum, factor)));
      const at::Tensor q = at::mm(sum.t(), p), expected = at::mm(p, q.t());
      const at::Tensor got = job.gradient(0, "matrix").view({40, 30}).to(at::kDouble);
      EXPECT_LE((got - expected).norm().item<double>(), 1e-4 * expected.norm().item<double>())
          << "rank " << rank << ", step " << step;
      carried = sum - got;
      factor = q;
      at::Tensor errors = at::zeros({40, 30}, at::kDouble);
      for (int r = 0; r < kRanks; ++r) {
        const FlatSlot& slot = job.flats[0]->slots().back();
        ASSERT_EQ(slot.name, "matrix");
        errors +=
            job.errors[static_cast<size_t>(r)].narrow(0, slot.offset, slot.numel).view({40, 30});
      }
      EXPECT_TRUE(at::allclose(errors, carried, 1e-3, 1e-4));
    }
  }
}

TEST(PowerSgd, SameGradientsAgainAndAgain_SumOfSumsConverges) {
  at::manual_seed(4);
  for (const bool warm : {true, false}) {
    PowerSgdJob job(config_of(2, 0, warm));
    std::vector<at::Tensor> own;
    for (int r = 0; r < kRanks; ++r) own.push_back(at::randn({40, 6, 5}));
    const at::Tensor expected = own[0] + own[1] + own[2];
    at::Tensor sum = at::zeros_like(expected);
    constexpr int kSteps = 300;
    for (int step = 0; step < kSteps; ++step) {
      for (int r = 0; r < kRanks; ++r) job.gradient(r, "matrix").copy_(own[static_cast<size_t>(r)]);
      job.reduce();
      sum += job.gradient(0, "matrix");
    }
    EXPECT_LE((sum / kSteps - expected).norm().item<double>(),
              0.15 * expected.norm().item<double>());
  }
}

TEST(PowerSgd, GradientNotFinite_IsSeenAndIsGoneInTheNextStep) {
  at::manual_seed(5);
  for (const int64_t rank : {1, 2}) {
    PowerSgdJob job(config_of(rank));
    job.draw();
    job.reduce();
    job.draw();
    job.gradient(1, "matrix")[3][2][1] = std::numeric_limits<double>::infinity();
    job.reduce();
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_FALSE(at::isfinite(job.gradient(r, "matrix")).all().item<bool>());
    }
    job.draw();
    job.reduce();
    EXPECT_TRUE(at::isfinite(job.gradient(0, "matrix")).all().item<bool>());
  }
}

// The step is skipped on every rank, so that the next one is as without it.
TEST(PowerSgd, GradientNotFinite_LeavesWhatIsCarriedAsItWas) {
  for (const char* where : {"matrix", "bias"}) {
    at::manual_seed(6);
    PowerSgdJob job(config_of(2)), plain(config_of(2));
    const auto draw_alike = [&] {
      job.draw();
      for (int r = 0; r < kRanks; ++r) {
        for (const char* name : {"matrix", "bias", "small"}) {
          plain.gradient(r, name).copy_(job.gradient(r, name));
        }
      }
    };
    draw_alike();
    job.reduce();
    plain.reduce();
    job.draw();
    job.gradient(2, where).view({-1})[7] = std::numeric_limits<double>::quiet_NaN();
    job.reduce();
    draw_alike();
    job.reduce();
    plain.reduce();
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(at::equal(job.gradient(r, "matrix"), plain.gradient(r, "matrix"))) << where;
      EXPECT_TRUE(
          at::equal(job.errors[static_cast<size_t>(r)], plain.errors[static_cast<size_t>(r)]))
          << where;
    }
  }
}

TEST(PowerSgd, GradientsOfZero_StayZero) {
  for (const int64_t rank : {1, 2}) {
    PowerSgdJob job(config_of(rank));
    job.reduce();
    EXPECT_EQ(job.gradient(0, "matrix").abs().max().item<double>(), 0);
  }
}

// As the script that wrote the golden makes them: of a bucket, from element `first`.
at::Tensor golden_gradient(int64_t numel, int rank, int step, int64_t first) {
  const at::Tensor i = at::arange(first, first + numel, at::kDouble);
  return at::sin(i * i * 0.37 + 1.9 * rank + 0.7 * step).to(at::kFloat);
}

// torch's mean over two ranks is our sum of halves.
TEST(PowerSgd, OverSteps_EqualsTorchsHooks) {
  constexpr int64_t kChunk = 8;
  const at::Tensor weights = at::cos(at::arange(kChunk, at::kDouble));
  for (const PowerSgdCase& golden : kTorchPowerSgd) {
    config::CommunicationConfig config = config_of(golden.rank);
    if (golden.batched) config.gradients = "batched_powersgd";
    config.powersgd_error_feedback = golden.feedback;
    config.powersgd_min_compression_rate = golden.min_rate;
    const int64_t bias = golden.bias, numel = bias + golden.rows * golden.columns;
    std::vector<std::unique_ptr<FlatParameters>> flats;
    std::vector<std::unique_ptr<PowerSgd>> states;
    std::vector<at::Tensor> errors;
    std::vector<std::unique_ptr<BucketReduction>> reductions;
    std::vector<at::Tensor> memories;
    for (int r = 0; r < 2; ++r) {
      flats.push_back(std::make_unique<FlatParameters>(
          std::vector<std::pair<std::string, at::Tensor>>{
              {"matrix", at::zeros({golden.rows, golden.columns})}, {"bias", at::zeros({bias})}},
          /*flat_gradients=*/true));
      const FlatParameters& flat = *flats.back();
      ASSERT_EQ(flat.slots()[1].offset, bias);
      memories.push_back(flat.groups()[0].gradients.narrow(0, 0, numel));
      states.push_back(std::make_unique<PowerSgd>(config, flat, r == 0));
      errors.push_back(golden.feedback ? at::zeros({numel}) : at::Tensor());
      reductions.push_back(std::make_unique<PowerSgdReduction>(*states.back(), flat.slots(), 0, 2,
                                                               memories.back(), errors.back()));
      const size_t slot = golden.batched ? 0 : 1;
      ASSERT_TRUE(states.back()->factors()[slot].defined()) << golden.name;
      const at::Tensor start = at::tensor(golden.factor);
      states.back()->keep(slot, start.view_as(states.back()->factors()[slot]));
    }
    for (size_t step = 0; step < golden.steps.size(); ++step) {
      for (int r = 0; r < 2; ++r) {
        const int number = static_cast<int>(step);
        memories[static_cast<size_t>(r)].copy_(
            at::cat({golden_gradient(bias, r, number, 0),
                     golden_gradient(numel - bias, r, number, bias)}) /
            2);
      }
      for (auto& state : states) state->begin();
      reduce_together(reductions);
      const at::Tensor expected = at::tensor(golden.steps[step], at::kDouble);
      for (const at::Tensor& memory : memories) {
        const at::Tensor got = at::mv(memory.to(at::kDouble).view({-1, kChunk}), weights);
        EXPECT_LE((got - expected).abs().max().item<double>(), 1e-5)
            << golden.name << ", step " << step;
      }
    }
  }
}

// In a bucket of both, with the padding between slots and after them.
TEST(PowerSgd, Batched_SumsOfTheSameGradientsConverge) {
  at::manual_seed(7);
  config::CommunicationConfig config = config_of(2);
  config.gradients = "batched_powersgd";
  PowerSgdJob job(config);
  std::vector<at::Tensor> own;
  for (int r = 0; r < kRanks; ++r) own.push_back(at::randn({40, 6, 5}));
  at::Tensor sum = at::zeros({40, 6, 5});
  constexpr int kSteps = 300;
  for (int step = 0; step < kSteps; ++step) {
    for (int r = 0; r < kRanks; ++r) {
      job.gradient(r, "matrix").copy_(own[static_cast<size_t>(r)]);
      job.gradient(r, "bias").fill_(1);
      job.gradient(r, "small").zero_();
    }
    job.reduce();
    sum += job.gradient(0, "matrix");
  }
  const at::Tensor expected = own[0] + own[1] + own[2];
  EXPECT_LE((sum / kSteps - expected).norm().item<double>(), 0.15 * expected.norm().item<double>());
  for (int r = 0; r < kRanks; ++r) {
    const FlatParameters& flat = *job.flats[static_cast<size_t>(r)];
    const at::Tensor& memory = flat.groups()[0].gradients;
    for (const at::Tensor& part :
         padding_in(flat.slots(), 0, flat.slots().size(),
                    memory.narrow(0, 0, flat.groups()[0].parameters.numel()))) {
      EXPECT_EQ(part.abs().max().item<double>(), 0);
    }
    EXPECT_TRUE(at::equal(memory, job.flats[0]->groups()[0].gradients));
  }
}

TEST(PowerSgd, Batched_GradientNotFinite_LeavesWhatIsCarriedAsItWas) {
  config::CommunicationConfig config = config_of(1);
  config.gradients = "batched_powersgd";
  at::manual_seed(8);
  PowerSgdJob job(config);
  job.draw();
  job.reduce();
  const at::Tensor factor = job.states[0]->factors()[0].clone();
  const at::Tensor error = job.states[0]->bucket_errors()[0].clone();
  EXPECT_GT(error.norm().item<double>(), 0);
  job.draw();
  job.gradient(1, "bias")[3] = std::numeric_limits<double>::infinity();
  job.reduce();
  EXPECT_FALSE(at::isfinite(job.gradient(2, "matrix")).all().item<bool>());
  EXPECT_TRUE(at::equal(job.states[0]->factors()[0], factor));
  EXPECT_TRUE(at::equal(job.states[0]->bucket_errors()[0], error));
}

// Each number that is sent is rounded once by its rank and once as a sum; what a rank's own
// rounding loses is carried.
TEST(PowerSgd, SentIn16Bits_IsRounded) {
  for (const char* type : {"fp16", "bf16"}) {
    const double precision = std::string(type) == "fp16" ? 1e-3 : 8e-3;
    at::manual_seed(9);
    config::CommunicationConfig config = config_of(2);
    PowerSgdJob exact(config);
    config.powersgd_dtype = type;
    PowerSgdJob job(config);
    job.draw();
    for (int r = 0; r < kRanks; ++r) {
      for (const char* name : {"matrix", "bias", "small"}) {
        exact.gradient(r, name).copy_(job.gradient(r, name));
      }
    }
    job.reduce();
    exact.reduce();
    for (const char* name : {"matrix", "bias"}) {
      const at::Tensor right = exact.gradient(0, name);
      const double difference = (job.gradient(0, name) - right).norm().item<double>();
      EXPECT_GT(difference, 0) << type << ", " << name;
      EXPECT_LE(difference, 4 * precision * right.norm().item<double>()) << type << ", " << name;
      EXPECT_TRUE(at::equal(job.gradient(0, name), job.gradient(1, name))) << name;
    }
  }
}

TEST(PowerSgd, SentInFp16_FactorOutOfRangeIsSeenAndErrorsStayFinite) {
  at::manual_seed(10);
  config::CommunicationConfig config = config_of(1);
  config.powersgd_dtype = "fp16";
  PowerSgdJob job(config);
  job.draw();
  for (int r = 0; r < kRanks; ++r) job.gradient(r, "matrix").mul_(1e5);
  job.reduce();
  EXPECT_FALSE(at::isfinite(job.gradient(0, "matrix")).all().item<bool>());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(at::isfinite(job.errors[static_cast<size_t>(r)]).all().item<bool>());
  }
  job.draw();
  job.reduce();
  EXPECT_TRUE(at::isfinite(job.gradient(0, "matrix")).all().item<bool>());
}

// One column after another, which ends at the same space.
TEST(PowerSgd, TinyEpsilon_ChangesNothing) {
  for (const int64_t rank : {1, 3}) {
    config::CommunicationConfig config = config_of(rank);
    PowerSgdJob exact(config);
    config.powersgd_orthogonalization_epsilon = 1e-9;
    PowerSgdJob job(config);
    for (int step = 0; step < 3; ++step) {
      job.draw();
      for (int r = 0; r < kRanks; ++r) exact.gradient(r, "matrix").copy_(job.gradient(r, "matrix"));
      job.reduce();
      exact.reduce();
      EXPECT_TRUE(at::allclose(job.gradient(0, "matrix"), exact.gradient(0, "matrix"), 1e-3, 1e-4));
    }
  }
}

// Every sum is a projection of that step's gradients: what is lost is orthogonal to what is kept.
TEST(PowerSgd, WithoutErrorFeedback_NothingIsCarried) {
  at::manual_seed(11);
  config::CommunicationConfig config = config_of(2);
  config.powersgd_error_feedback = false;
  PowerSgdJob job(config);
  for (int step = 0; step < 3; ++step) {
    job.draw();
    const at::Tensor sum = job.sum_of("matrix").view({40, 30});
    job.reduce();
    const at::Tensor kept = job.gradient(0, "matrix").view({40, 30});
    EXPECT_LE(at::mm(kept.t(), sum - kept).norm().item<double>(),
              1e-4 * at::mm(kept.t(), kept).norm().item<double>());
  }
}

TEST(PowerSgd, RankAboveTheSmallerSide_SaysWhichAreReducedWhole) {
  ::testing::internal::CaptureStderr();
  PowerSgdJob job(config_of(4));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("communication.powersgd_rank is 4, which exceeds the smaller dimension of "
                      "'small' [2, 3]: reduced uncompressed"),
            std::string::npos)
      << text;
  job.draw();
  const at::Tensor small = job.sum_of("small");
  job.reduce();
  EXPECT_TRUE(at::equal(job.gradient(0, "small"), small));
}

TEST(PowerSgd, NothingGains_SaysSoAndReducesWhole) {
  ::testing::internal::CaptureStderr();
  PowerSgdJob job(config_of(20));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      text.find("factors of rank 20 are not 2 times smaller than any gradient of the model: all "
                "are reduced uncompressed; set a lower communication.powersgd_rank"),
      std::string::npos)
      << text;
  job.draw();
  const at::Tensor matrix = job.sum_of("matrix");
  job.reduce();
  EXPECT_TRUE(at::equal(job.gradient(0, "matrix"), matrix));
}

}  // namespace
}  // namespace coupler::strategy
