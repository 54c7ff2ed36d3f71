#include "coupler/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "track/progress_line.h"

namespace coupler {
namespace {

// Standard error as a file while it lives.
class CapturedError {
 public:
  CapturedError() {
    char name[] = "/tmp/coupler_progress_XXXXXX";
    file_ = ::mkstemp(name);
    ::unlink(name);
    saved_ = ::dup(STDERR_FILENO);
    ::dup2(file_, STDERR_FILENO);
  }
  ~CapturedError() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(file_);
  }
  CapturedError(const CapturedError&) = delete;
  CapturedError& operator=(const CapturedError&) = delete;

  std::string text() const {
    std::string all(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    const ssize_t got = ::pread(file_, all.data(), all.size(), 0);
    all.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return all;
  }

 private:
  int file_;
  int saved_;
};

class Progress : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("COUPLER_TERMINAL"); }
};

TEST(ProgressLine, Clock_ShowsMinutesAndHours) {
  EXPECT_EQ(clock_text(0), "0:00");
  EXPECT_EQ(clock_text(7.4), "0:07");
  EXPECT_EQ(clock_text(754), "12:34");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "--:--");
  EXPECT_EQ(clock_text(1e300), "--:--");
}

TEST(ProgressLine, Rate_HasAUnitThatFits) {
  EXPECT_EQ(rate_text(0, 1), "-/s");
  EXPECT_EQ(rate_text(5, 0), "-/s");
  EXPECT_EQ(rate_text(1, 4), "4 s/step");
  EXPECT_EQ(rate_text(250, 2), "125/s");
  EXPECT_EQ(rate_text(2480, 2), "1.24k/s");
  EXPECT_EQ(rate_text(5'000'000, 2), "2.5M/s");
}

TEST(ProgressLine, HalfWay_FillsHalfTheBar) {
  const ProgressView view{"epoch 1", 50, 100, 10, "loss 0.52"};
  EXPECT_EQ(bar_text(view, 100),
            "epoch 1  50% |###############...............| 50/100 [0:10<0:10, 5/s] loss 0.52");
  EXPECT_EQ(plain_text(view), "epoch 1: 50% 50/100 [0:10<0:10, 5/s] loss 0.52");
}

TEST(ProgressLine, UnknownTotal_OnlyCounts) {
  EXPECT_EQ(bar_text({"", 7, 0, 7, ""}, 80), "7 [0:07, 1/s]");
  EXPECT_EQ(plain_text({"read", 7, 0, 7, ""}), "read: 7 [0:07, 1/s]");
}

TEST(ProgressLine, AnyWidth_IsNeverExceeded) {
  const ProgressView view{"a long label é é é of an epoch", 99, 100, 99, "loss 1.25 über alles"};
  for (int columns = 1; columns < 150; ++columns) {
    const std::string line = bar_text(view, columns);
    const auto shown = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    });
    EXPECT_LE(shown, std::max(columns - 1, 1)) << line;
  }
}

TEST(ProgressLine, ControlCharacters_BecomeSpaces) {
  EXPECT_EQ(plain_text({"a\nb", 1, 0, 1, "x\ty\x1b"}), "a b: 1 [0:01, 1/s] x y ");
}

TEST(ProgressLine, MoreThanTheTotal_StaysAtAHundredPercent) {
  EXPECT_NE(bar_text({"", 12, 10, 1, ""}, 80).find("100%"), std::string::npos);
}

TEST_F(Progress, WhereNotEnabled_PrintsNothing) {
  const CapturedError captured;
  {
    ProgressBar bar("x", 3, /*enabled=*/false);
    bar.set_suffix("s");
    bar.advance(3);
    bar.finish();
  }
  EXPECT_EQ(captured.text(), "");
}

TEST_F(Progress, IntoAFile_IsPlainLinesAndEndsWithTheLastState) {
  const CapturedError captured;
  {
    ProgressBar bar("epoch 1", 1000);
    for (int i = 0; i < 1000; ++i) bar.advance();
    bar.set_suffix("loss 0.5");
  }
  const std::string text = captured.text();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.rfind("epoch 1: ", 0), 0u) << text;
  EXPECT_NE(text.find("100% 1000/1000"), std::string::npos) << text;
  EXPECT_EQ(text.substr(text.size() - 9), "loss 0.5\n");
}

TEST_F(Progress, WhereALauncherSaysItIsATerminal_DrawsOverTheLine) {
  ::setenv("COUPLER_TERMINAL", "60", 1);
  const CapturedError captured;
  {
    ProgressBar bar("epoch 1", 10);
    bar.advance(10);
  }
  const std::string text = captured.text();
  EXPECT_EQ(text.front(), '\r');
  EXPECT_NE(text.find("100%"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 4), "\x1b[K\n");
}

TEST_F(Progress, FinishedTwice_PrintsTheEndOnce) {
  ::setenv("COUPLER_TERMINAL", "60", 1);
  const CapturedError captured;
  {
    ProgressBar bar("x", 1);
    bar.advance();
    bar.finish();
    bar.advance();
    bar.finish();
  }
  const std::string text = captured.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST_F(Progress, ClosedStandardError_IsNoFailure) {
  const CapturedError captured;
  ::close(STDERR_FILENO);
  ProgressBar bar("x", 1);
  bar.advance();
  bar.finish();
}

}  // namespace
}  // namespace coupler
