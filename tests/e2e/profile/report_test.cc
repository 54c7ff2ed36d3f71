// coupler report over files as trackers and profiles write them, complete and broken.
#include <gtest/gtest.h>

#include <initializer_list>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

constexpr const char* kMetrics =
    R"({"run": "digits", "config": {"lr": 0.1}}
{"step": 0, "time": 1.0, "values": {"loss": 2.5, "<name>": 1, "text": "no number"}}
{"step": 2, "time": 3.0, "values": {"loss": 0.5, "<name>": 1}}
{"step": 1, "time": 2.0, "values": {"loss": null}}
{"step": 3, "time": 4.0, "val)";

std::string profile_of(int rank, double waiting) {
  std::ostringstream text;
  text << R"({"rank": )" << rank << R"(, "world": 2, "step_seconds": [0.5, 0.25, 0.25],)"
       << R"( "waiting_seconds": )" << waiting << R"(, "peak_memory_bytes": 1048576,)"
       << R"( "communication": {"all_reduce": {"count": 3, "bytes": 3072, "seconds": 0.2}},)"
       << R"( "groups": {"data": {"count": 1, "bytes": 1024, "seconds": 0.15,)"
       << R"( "waiting_seconds": 0.02}, "tensor": {"count": 2, "bytes": 2048, "seconds": 0.05,)"
       << R"( "waiting_seconds": 0.04}}})";
  return text.str();
}

TEST(Report, OfARun_HasItsNumbersItsRanksAndWhoIsSlow) {
  const Workplace here;
  here.write("run/metrics.jsonl", kMetrics);
  here.write("run/traces/profile-rank0.json", profile_of(0, 0.4));
  here.write("run/traces/profile-rank1.json", profile_of(1, 0.1));
  const Outcome outcome = here.coupler({"report", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "loss: 2.5 to 0.5 in 2 values")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "rank 0: 3 steps per second, 40.0 % of the time waiting"))
      << outcome.out;
  expect_in(outcome.out,
            "rank 0, data: 1 operation, 1.0 KiB, 0.15 seconds, 2.0 % of the time waiting\n"
            "rank 0, tensor: 2 operations, 2.0 KiB, 0.05 seconds, 4.0 % of the time waiting\n");
  EXPECT_TRUE(has(outcome.out, "1 of 5 lines are not JSON objects")) << outcome.out;
  const std::string page = text_of(here.path() / "run/report.html");
  EXPECT_TRUE(has(page, "Rank 1 waits least")) << page;
  EXPECT_TRUE(has(page, "<polyline")) << page;
  EXPECT_TRUE(has(page, "<title>step 2: 0.5</title>")) << "a point has no value";
  EXPECT_TRUE(has(page, "<title>rank 1, recorded step 1: 500</title>")) << page;
  EXPECT_TRUE(has(page, "<b>25.0 %</b>")) << "the ranks' mean waiting time";
  expect_in(page, "<td>tensor</td><td>2</td><td>2.0 KiB</td><td>0.05</td><td>4.0 %</td>");
  EXPECT_TRUE(has(page, "&lt;name&gt;") && !has(page, "<name>")) << "names are not escaped";
  for (const char* outside : {"http:", "https:", "<script", "src="})
    EXPECT_FALSE(has(page, outside)) << outside;
}

// All runs append to one file: the first was interrupted, the second resumes from its checkpoint,
// the third starts from scratch.
TEST(Report, OfRunsInOneFile_HasWhatTheLastOneLoggedOfEachStep) {
  const Workplace here;
  const auto run = [](std::initializer_list<std::pair<int, int>> losses) {
    std::ostringstream text;
    text << R"({"project": "p", "run": "", "config": {}})"
         << "\n";
    for (const auto& [step, loss] : losses)
      text << R"({"step": )" << step << R"(, "values": {"loss": )" << loss << "}}\n";
    return text.str();
  };
  const std::string resumed = run({{0, 9}, {1, 8}, {2, 7}, {3, 6}}) + run({{2, 5}, {3, 4}});
  here.write("run/metrics.jsonl", resumed);
  EXPECT_TRUE(has(here.coupler({"report", "run"}).out, "loss: 9 to 4 in 4 values"));
  here.write("run/metrics.jsonl", resumed + run({{0, 3}, {1, 2}}));
  EXPECT_TRUE(has(here.coupler({"report", "run"}).out, "loss: 3 to 2 in 2 values"));
  here.write("run/other/metrics.jsonl", run({{0, 1}}));
  const Outcome outcome = here.coupler({"report", "run"});
  EXPECT_TRUE(has(outcome.out, "other: loss: 1 to 1 in 1 values")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "loss: 3 to 2 in 2 values")) << outcome.out;
}

size_t count(const std::string& text, const std::string& part) {
  size_t result = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++result;
  return result;
}

TEST(Report, OfOneValue_HasADot_OfMany_TheirMeanToo) {
  const Workplace here;
  std::string lines = R"({"step": 7, "time": 1.0, "values": {"once": 3}})"
                      "\n";
  for (int step = 0; step < 5000; ++step)
    lines += R"({"step": )" + std::to_string(step) + R"(, "values": {"often": )" +
             std::to_string(step % 2) + "}}\n";
  here.write("run/metrics.jsonl", lines);
  ASSERT_EQ(here.coupler({"report", "run"}).exit_code, 0);
  const std::string page = text_of(here.path() / "run/report.html");
  EXPECT_EQ(count(page, "<polyline"), 2u) << "the values, and their mean";
  EXPECT_EQ(count(page, "class=\"main dot\""), 2u) << "each plot's last value";
  EXPECT_LT(page.size(), 100'000u) << "a long run makes the page too large";
}

TEST(Report, WithoutFiles_SaysWhichItLooksFor) {
  const Workplace here;
  here.write("run/else.txt", "");
  const Outcome outcome = here.coupler({"report", "run"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(has(outcome.err, "has neither metrics.jsonl nor profile-rank*.json")) << outcome.err;
  EXPECT_TRUE(has(here.coupler({"report", "nowhere"}).err, "cannot read nowhere"));
  EXPECT_EQ(here.coupler({"report"}).exit_code, 2);
  EXPECT_EQ(here.coupler({"report", "run", "--wrong"}).exit_code, 2);
}

TEST(Report, OfAProfileWithoutGroups_HasTheRest) {
  const Workplace here;
  std::string profile = profile_of(0, 0.4);
  profile.replace(profile.find(R"(, "groups")"), std::string::npos, "}");
  here.write("run/profile-rank0.json", profile);
  const Outcome outcome = here.coupler({"report", "run"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.out, "rank 0: 3 steps per second, 40.0 % of the time waiting");
  EXPECT_FALSE(has(outcome.out, "is incomplete")) << outcome.out;
}

TEST(Report, OfARoundThatHadNotEnded_NotesIt) {
  const Workplace here;
  here.write("run/profile-rank0.json", "{}\n");
  const Outcome outcome = here.coupler({"report", "run", "--output", "page.html"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "is incomplete")) << outcome.out;
  EXPECT_TRUE(has(text_of(here.path() / "page.html"), "is incomplete"));
}

}  // namespace
}  // namespace coupler
