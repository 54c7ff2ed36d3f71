#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "sharding/pipeline_schedule.h"

namespace coupler::sharding {
namespace {

const std::vector<std::string> kLayers = {"te", "blocks.0", "blocks.1", "blocks.2", "nf"};

std::string cut_refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "no exception was thrown";
  return {};
}

void expect_in(const std::string& text, const std::string& message) {
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

TEST(CutAt, NamesInAnyOrder_BeginThere) {
  EXPECT_EQ(cut_at(kLayers, {"blocks.2", "blocks.0"}, 3), (StageBegins{0, 1, 3}));
  EXPECT_EQ(cut_at(kLayers, {}, 1), StageBegins{0});
}

TEST(CutAt, ModuleWithLayers_StandsForItsFirst) {
  EXPECT_EQ(cut_at({"0", "1.0", "1.1", "10"}, {"1"}, 2), (StageBegins{0, 1}));
}

TEST(CutAt, TooManyOrTooFew_SaysHowManyAndWhich) {
  const std::string few = cut_refusal([] { cut_at(kLayers, {"blocks.1"}, 3); });
  expect_in("names 1 layers, but 3 processes need 2", few);
  expect_in("te, blocks.0, blocks.1", few);
  expect_in("names 2 layers, but 2 processes need 1", cut_refusal([] {
              cut_at(kLayers, {"blocks.1", "nf"}, 2);
            }));
}

TEST(CutAt, VirtualStages_NeedANameForEachPart) {
  EXPECT_EQ(cut_at(kLayers, {"blocks.0", "blocks.1", "nf"}, 2, 2), (StageBegins{0, 1, 2, 4}));
  expect_in("names 1 layers, but 2 processes with 2 virtual stages each need 3",
            cut_refusal([] { cut_at(kLayers, {"blocks.1"}, 2, 2); }));
}

TEST(CutAt, UnknownName_NamesTheNearestAndAll) {
  const std::string message = cut_refusal([] { cut_at(kLayers, {"block.1"}, 2); });
  expect_in("no layer 'block.1'; did you mean 'blocks.1'?", message);
  expect_in("its layers, in order: te, blocks.0", message);
  expect_in("no layer ''", cut_refusal([] { cut_at(kLayers, {""}, 2); }));
}

TEST(CutAt, FirstLayerOrOneTwice_Refused) {
  expect_in("'te' is the first layer", cut_refusal([] { cut_at(kLayers, {"te"}, 2); }));
  expect_in("names the layer 'nf' twice", cut_refusal([] { cut_at(kLayers, {"nf", "nf"}, 3); }));
}

double most_of(const std::vector<double>& costs, const StageBegins& begins) {
  double most = 0;
  for (size_t s = 0; s < begins.size(); ++s) {
    const size_t end = s + 1 < begins.size() ? begins[s + 1] : costs.size();
    double sum = 0;
    for (size_t i = begins[s]; i < end; ++i) sum += costs[i];
    most = std::max(most, sum);
  }
  return most;
}

// Tries every cut.
double least_most(const std::vector<double>& costs, int stages, StageBegins begins = {0}) {
  if (begins.size() == static_cast<size_t>(stages)) return most_of(costs, begins);
  double least = std::numeric_limits<double>::infinity();
  for (size_t next = begins.back() + 1; next < costs.size(); ++next) {
    begins.push_back(next);
    least = std::min(least, least_most(costs, stages, begins));
    begins.pop_back();
  }
  return least;
}

TEST(BalancedCut, RandomCosts_AsGoodAsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) cost = static_cast<double>(random() % 20);
    const int stages = 1 + static_cast<int>(random() % costs.size());
    const StageBegins begins = balanced_cut(costs, stages);
    ASSERT_EQ(begins.size(), static_cast<size_t>(stages));
    EXPECT_EQ(begins[0], 0u);
    for (size_t s = 1; s < begins.size(); ++s) EXPECT_LT(begins[s - 1], begins[s]);
    EXPECT_LT(begins.back(), costs.size());
    EXPECT_DOUBLE_EQ(most_of(costs, begins), least_most(costs, stages));
  }
}

TEST(BalancedCut, SeveralWithTheSameMost_TheMostEven) {
  EXPECT_EQ(balanced_cut({6, 1, 1, 1, 1}, 3), (StageBegins{0, 1, 3}));
}

TEST(BalancedCut, FewerLayersThanStages_Refused) {
  expect_in("has 2 layers, too few for 3 processes", cut_refusal([] { balanced_cut({1, 1}, 3); }));
  expect_in("has 3 layers, too few for 2 processes with 2 virtual stages each", cut_refusal([] {
              balanced_cut({1, 1, 1}, 2, 2);
            }));
}

}  // namespace
}  // namespace coupler::sharding
