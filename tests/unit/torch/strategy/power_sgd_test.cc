// PowerSGD against its definition in plain products, and what it must leave unchanged.
#include "strategy/power_sgd.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

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
          *states.back(), flat.slots(), 0, flat.slots().size(), 0,
          group.gradients.narrow(0, 0, group.parameters.numel()), errors.back()));
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
  EXPECT_NE(text.find("rank 20 does not halve the size of any gradient of the model: all are "
                      "reduced uncompressed; set a lower communication.powersgd_rank"),
            std::string::npos)
      << text;
  job.draw();
  const at::Tensor matrix = job.sum_of("matrix");
  job.reduce();
  EXPECT_TRUE(at::equal(job.gradient(0, "matrix"), matrix));
}

}  // namespace
}  // namespace coupler::strategy
