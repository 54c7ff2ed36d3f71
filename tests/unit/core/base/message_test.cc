// The two parts of an Error's message.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace coupler {
namespace {

TEST(ErrorMessage, HasTwoParts) {
  const Error error(ErrorCode::kIo, "a.txt cannot be read\nat all", {.hint = "give another"});
  EXPECT_EQ(without_hint(error.what()), "a.txt cannot be read\nat all");
  EXPECT_EQ(hint_in(error.what()), "give another");
}

TEST(ErrorMessage, WithoutAHint_IsTheWholeText) {
  const Error error(ErrorCode::kIo, "a.txt cannot be read");
  EXPECT_EQ(without_hint(error.what()), "a.txt cannot be read");
  EXPECT_EQ(hint_in(error.what()), "");
}

}  // namespace
}  // namespace coupler
