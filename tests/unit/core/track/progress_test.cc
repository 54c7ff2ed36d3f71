#include "track/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/status_line.h"
#include "captured_error.h"
#include "coupler/tracker.h"

namespace coupler::track {
namespace {

class Progress : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("COUPLER_TERMINAL");
    ::unsetenv("COUPLER_PROGRESS");
  }
  // The terminal output of a bar with three values, written 150 ms apart, and of `between`.
  static std::string on_a_terminal(const std::function<void(ProgressBar&)>& between) {
    ::setenv("COUPLER_TERMINAL", "60", 1);
    const CapturedError captured;
    {
      ProgressBar bar("epoch 1", 3, /*enabled=*/true);
      std::this_thread::sleep_for(std::chrono::milliseconds(110));
      bar.advance();  // drawn
      between(bar);
      bar.advance(2);
    }
    return captured.text();
  }
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
    const auto for_message = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    });
    EXPECT_LE(for_message, std::max(columns - 1, 1)) << line;
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

TEST(ProgressLine, RateOfLately_TellsTheTimeLeft) {
  ProgressView view{"", 10, 110, 100, ""};
  EXPECT_EQ(plain_text(view), "9% 10/110 [1:40<16:40, 10 s/step]");
  view.rate = 10;
  EXPECT_EQ(plain_text(view), "9% 10/110 [1:40<0:10, 10/s]");
}

TEST(ProgressLine, BarsAround_StandBeforeTheLabel) {
  ProgressView view{"files", 1, 2, 1, ""};
  view.around = brief_text("epochs", 3, 10);
  const std::string line = bar_text(view, 100);
  EXPECT_EQ(line.rfind("epochs 3/10 > files  50% |", 0), 0u) << line;
}

TEST_F(Progress, Values_AreShownByName) {
  const CapturedError captured;
  {
    ProgressBar bar("epoch 1", 2, /*enabled=*/true);
    bar.set_value("loss", 0.75);
    bar.set_value("accuracy", 0.5);
    bar.set_value("loss", 0.52131);
    bar.set_suffix("warm");
    bar.advance(2);
  }
  EXPECT_NE(captured.text().find("] loss 0.5213, accuracy 0.5 warm\n"), std::string::npos)
      << captured.text();
}

TEST_F(Progress, LogLine_GoesAboveTheBar) {
  const std::string text =
      on_a_terminal([](ProgressBar&) { log(LogLevel::kWarning, "train", "the loss is rising"); });
  // The bar is erased, the line is whole, and the bar is redrawn below it.
  EXPECT_NE(text.find("\r\x1b[K[coupler train] the loss is rising\nepoch 1  33%"),
            std::string::npos)
      << text;
}

TEST_F(Progress, ErrorThatEndsTheProcess_BeginsALineOfItsOwn) {
  const std::string text = on_a_terminal([](ProgressBar&) { report_error("out of luck"); });
  EXPECT_NE(text.find("\ncoupler: error: out of luck\n"), std::string::npos) << text;
}

TEST_F(Progress, WithoutABar_ErrorsBeginWhereTheyAre) {
  const CapturedError captured;
  report_error("out of luck");
  EXPECT_EQ(captured.text(), "coupler: error: out of luck\n");
}

TEST_F(Progress, BarInABar_IsTheOneThatIsDrawn_AndLeavesNothing) {
  const std::string text = on_a_terminal([](ProgressBar& outer) {
    ProgressBar inner("files", 4, /*enabled=*/true);
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    inner.advance();
    outer.advance(0);  // does not draw meanwhile
  });
  EXPECT_NE(text.find("epoch 1 1/3 > files  25%"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.substr(text.rfind('\r')).rfind("\repoch 1 100%", 0), 0u) << text;
}

TEST_F(Progress, TurnedOff_PrintsNothing) {
  ::setenv("COUPLER_PROGRESS", "off", 1);
  const CapturedError captured;
  {
    ProgressBar bar("x", 3, /*enabled=*/true);
    bar.advance(3);
  }
  EXPECT_EQ(captured.text(), "");
}

TEST_F(Progress, PlainOnATerminal_IsLines) {
  ::setenv("COUPLER_TERMINAL", "60", 1);
  ::setenv("COUPLER_PROGRESS", "plain", 1);
  const CapturedError captured;
  {
    ProgressBar bar("x", 3, /*enabled=*/true);
    bar.advance(3);
  }
  EXPECT_EQ(captured.text().find('\r'), std::string::npos);
  EXPECT_EQ(captured.text().rfind("x: 100% 3/3", 0), 0u);
}

TEST_F(Progress, OfAJob_TheMainProcessDraws) {
  const CapturedError captured;
  set_log_rank(1);
  { ProgressBar("x", 3).advance(3); }
  EXPECT_EQ(captured.text(), "");
  set_log_rank(0);
  { ProgressBar("x", 3).advance(3); }
  set_log_rank(-1);
  EXPECT_EQ(captured.text().rfind("x: 100%", 0), 0u);
}

}  // namespace
}  // namespace coupler::track
