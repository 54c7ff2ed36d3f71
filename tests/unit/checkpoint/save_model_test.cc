// All interleavings of three ranks, three saves and a fault at every step.
#include "save_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace coupler::checkpoint::model {
namespace {

std::string text_of(const Found& found) {
  std::string text = found.violation + "\n";
  for (const Event& event : found.events) text += to_string(event) + "\n";
  return text;
}

TEST(SaveModel, WhateverFailsInWhateverOrder_ACheckpointIsOfOneSaveAndStep) {
  const Found found = explore({});
  EXPECT_EQ(found.violation, "") << text_of(found);
  std::printf("%zu states, %zu commits, %zu failed saves\n", found.states, found.commits,
              found.aborts);
  EXPECT_GT(found.states, 10000u);
  EXPECT_GT(found.commits, 100u);
}

TEST(SaveModel, AJobKilledButForARankThatGoesOnWriting_HarmsNoLaterCheckpoint) {
  const Found found = explore({.restart = true});
  EXPECT_EQ(found.violation, "") << text_of(found);
  std::printf("%zu states, %zu commits, %zu failed saves\n", found.states, found.commits,
              found.aborts);
}

// The model can fail: without identities it finds the checkpoint of two steps.
TEST(SaveModel, WithoutIdentities_ACheckpointOfTwoStepsIsFound) {
  const Found found = explore({.identity = false});
  EXPECT_NE(found.violation, "");
  std::printf("%s", text_of(found).c_str());
  EXPECT_EQ(found.events.back().action, Action::kCommit);
}

}  // namespace
}  // namespace coupler::checkpoint::model
