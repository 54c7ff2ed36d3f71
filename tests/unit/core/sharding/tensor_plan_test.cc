// The words of a plan, and which modules its lines name.
#include "sharding/tensor_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "refusal.h"

namespace coupler::sharding {
namespace {

void expect_refused(const std::string& part, const std::function<void()>& action) {
  testing::expect_error(ErrorCode::kConfig, part, action);
}

const std::vector<std::string> kModules = {
    "",         "embed",      "layers",      "layers.0", "layers.0.q", "layers.0.up",
    "layers.1", "layers.1.q", "layers.1.up", "head"};

TEST(TensorPlan, Words_AreOurs_AndTransformers) {
  const auto style = [](const char* word) { return layer_style(word, "here"); };
  EXPECT_EQ(style("colwise").style, TensorStyle::kColwise);
  EXPECT_EQ(style("colwise/3").blocks, 3);
  EXPECT_EQ(style("rowwise/2").style, TensorStyle::kRowwise);
  EXPECT_EQ(style("colwise_rep"), style("colwise_gather"));
  EXPECT_EQ(style("rowwise_rep"), style("rowwise_split"));
  EXPECT_EQ(style("embedding_rowwise"), style("vocab"));
  EXPECT_EQ(style("packed_colwise"), style("colwise/2"));
  EXPECT_EQ(style("sequence_parallel"), style("sequence"));
  EXPECT_EQ(style("gather_sequence").style, TensorStyle::kGatherSequence);
}

TEST(TensorPlan, OtherWords_AreRefused_WithThoseThatExist) {
  for (const char* word :
       {"", "colum", "colwise/0", "colwise/x", "colwise/2/3", "vocab/2", "sequence/2"}) {
    expect_refused("line 3: '", [&] { layer_style(word, "line 3"); });
  }
  expect_refused("use one of colwise, colwise_gather", [] { layer_style("colum", "x"); });
}

TEST(TensorPlan, Lines_ArePatternAndStyle) {
  const PlannedLayers line = planned_layers("  layers.*.q =colwise ");
  EXPECT_EQ(line.pattern, "layers.*.q");
  EXPECT_EQ(line.style.style, TensorStyle::kColwise);
  for (const char* wrong : {"", "layers.*.q", "= colwise", "a : colwise"})
    expect_refused("is not PATTERN=STYLE", [&] { planned_layers(wrong); });
  expect_refused("parallel.tensor_plan: \"a = b\": 'b'", [] { planned_layers("a = b"); });
}

TEST(TensorPlan, Lines_NameModules) {
  const std::vector<PlannedLayers> plan = {planned_layers("layers.*.q = colwise"),
                                           planned_layers("**.q = colwise"),
                                           planned_layers("layers.1.up = rowwise")};
  const auto lines = match_plan(plan, kModules);
  for (size_t m = 0; m < kModules.size(); ++m) {
    const bool query = kModules[m].ends_with(".q"), up = kModules[m] == "layers.1.up";
    EXPECT_EQ(lines[m] != nullptr, query || up) << kModules[m];
    if (lines[m] != nullptr) {
      EXPECT_EQ(lines[m]->style.style, up ? TensorStyle::kRowwise : TensorStyle::kColwise);
    }
  }
}

TEST(TensorPlan, ALineThatNamesNothing_IsRefused_WithTheModules) {
  const std::vector<PlannedLayers> plan = {planned_layers("layers.*.k = colwise")};
  for (const char* part :
       {"\"layers.*.k = colwise\" matches no module of the model", "embed, layers, layers.0"})
    expect_refused(part, [&] { match_plan(plan, kModules); });
}

TEST(TensorPlan, LinesThatContradict_AreRefused_BothNamed) {
  const std::vector<PlannedLayers> plan = {planned_layers("layers.*.q = colwise"),
                                           planned_layers("**.q = rowwise")};
  for (const char* part : {"'layers.0.q'", "\"layers.*.q = colwise\"", "\"**.q = rowwise\""})
    expect_refused(part, [&] { match_plan(plan, kModules); });
}

}  // namespace
}  // namespace coupler::sharding
