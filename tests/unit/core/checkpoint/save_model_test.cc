// All interleavings of three ranks, three saves, a fault at every step and a kill.
#include "save_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace coupler::checkpoint::model {
namespace {

std::string found_text(const Found& found) {
  constexpr const char* kNames[] = {"torn", "foreign", "lost", "stuck"};
  std::string text;
  for (const auto& [what, path] : found.violations)
    text += std::string(kNames[static_cast<size_t>(what)]) + ":\n" + to_string(path.events);
  return text;
}

TEST(SaveModel, WhateverFailsInWhateverOrder_ACheckpointIsOfOneSaveAndStep_AndTheNewestIsThere) {
  const Found found = explore({});
  EXPECT_TRUE(found.violations.empty()) << found_text(found);
  std::printf("%zu states, %zu events\n", found.states, found.events);
  EXPECT_GT(found.states, 100000u);
  // Each call was explored many times, with each fault that it can have.
  for (int action = 0; action <= static_cast<int>(Action::kKill); ++action)
    EXPECT_GT((found.kinds.at({static_cast<Action>(action), Fault::kNone})), 300u) << action;
  for (const Action action : {Action::kHide, Action::kRemove, Action::kMake, Action::kOpen,
                              Action::kWrite, Action::kList, Action::kName})
    EXPECT_GT((found.kinds.at({action, Fault::kFails})), 300u) << static_cast<int>(action);
  EXPECT_GT((found.kinds.at({Action::kName, Fault::kFailsAfter})), 300u);
  EXPECT_GT((found.kinds.at({Action::kCollect, Fault::kTimeout})), 300u);
}

// The model can fail: each rule of the code is needed.

TEST(SaveModel, AsItWas_ACheckpointOfTwoStepsIsFound) {
  const Found found = explore(kAsItWas, {.until = Violation::kTorn});
  EXPECT_TRUE(found.violations.contains(Violation::kTorn));
  std::printf("%s", found_text(found).c_str());
}

TEST(SaveModel, WithoutAFolderOfItsOwn_ASaveGetsPiecesOfAnother) {
  const Found found = explore({.own_folder = false}, {.until = Violation::kTorn});
  EXPECT_TRUE(found.violations.contains(Violation::kForeign));
  // Leftovers of a killed job remove a piece of the next job's save, after it was checked.
  EXPECT_TRUE(found.violations.contains(Violation::kTorn));
}

// Ranks that begin at different steps write a checkpoint of two steps or, if steps are compared,
// none.
TEST(SaveModel, BeginningAtDifferentSteps_TearsOnlyWithoutComparingThem) {
  const Found torn =
      explore({.steps_compared = false, .begins_alike = false}, {.until = Violation::kTorn});
  EXPECT_TRUE(torn.violations.contains(Violation::kTorn));
  const Found compared = explore({.begins_alike = false});
  EXPECT_FALSE(compared.violations.contains(Violation::kTorn)) << found_text(compared);
  EXPECT_FALSE(compared.violations.contains(Violation::kLost)) << found_text(compared);
}

TEST(SaveModel, PruningBeforeTheNewOneHasItsName_LosesTheNewest) {
  const Found found = explore({.prunes_last = false}, {.until = Violation::kLost});
  EXPECT_TRUE(found.violations.contains(Violation::kLost));
}

}  // namespace
}  // namespace coupler::checkpoint::model
