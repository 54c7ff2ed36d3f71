#include <coupler/error.h>
#include <gtest/gtest.h>

namespace coupler {
namespace {

TEST(Error, WithoutHint_SaysTheMessageAlone) {
  EXPECT_STREQ(Error(ErrorCode::kIo, "cannot read 'x'").what(), "cannot read 'x'");
}

TEST(Error, WithHint_SaysItOnTheNextLine) {
  const Error error(ErrorCode::kConfig, "unknown key", {.subject = "k", .hint = "remove it"});
  EXPECT_STREQ(error.what(), "unknown key\n  hint: remove it");
  EXPECT_EQ(error.detail().subject, "k");
  EXPECT_EQ(error.detail().hint, "remove it");
  EXPECT_EQ(error.detail().rank, -1);
}

TEST(Error, ExitCodeOfEveryCode_IsTheDocumentedOne) {
  const auto exit_code = [](ErrorCode code) { return Error(code, "x").exit_code(); };
  EXPECT_EQ(exit_code(ErrorCode::kUsage), 2);
  EXPECT_EQ(exit_code(ErrorCode::kConfig), 2);
  EXPECT_EQ(exit_code(ErrorCode::kPlugin), 3);
  EXPECT_EQ(exit_code(ErrorCode::kMismatch), 4);
  EXPECT_EQ(exit_code(ErrorCode::kPeerLost), 4);
  EXPECT_EQ(exit_code(ErrorCode::kTimeout), 4);
  EXPECT_EQ(exit_code(ErrorCode::kInvalidArgument), 1);
  EXPECT_EQ(exit_code(ErrorCode::kUnsupported), 1);
  EXPECT_EQ(exit_code(ErrorCode::kAborted), 1);
  EXPECT_EQ(exit_code(ErrorCode::kIo), 1);
  EXPECT_EQ(exit_code(ErrorCode::kInternal), 1);
}

TEST(ErrorCode, ToString_NamesIt) {
  EXPECT_EQ(to_string(ErrorCode::kUsage), "usage");
  EXPECT_EQ(to_string(ErrorCode::kPeerLost), "peer lost");
  EXPECT_EQ(to_string(ErrorCode::kInternal), "internal");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(99)), "unknown");
}

}  // namespace
}  // namespace coupler
