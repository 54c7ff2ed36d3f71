// [profile]: which steps are traced, what traces contain, and that training continues if they
// cannot be written.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "run_program.h"

namespace coupler {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

class Profiles : public ::testing::Test {
 protected:
  Outcome train(const Arguments& options, const std::string& ranks = "2") const {
    Arguments arguments = {"launch", "-n", ranks};
    for (const std::string& option : options) arguments.insert(arguments.end(), {"-o", option});
    arguments.insert(arguments.end(), {DIGITS_PROGRAM, "--epochs", "1"});
    return here_.coupler(arguments);
  }
  json read(const std::string& name) const {
    std::ifstream in(here_.path() / "traces" / name);
    return json::parse(in, nullptr, /*allow_exceptions=*/false);
  }
  static std::multiset<std::string> names_in(const json& trace) {
    std::multiset<std::string> names;
    for (const json& event : trace.at("traceEvents")) names.insert(event.value("name", ""));
    return names;
  }
  // With parallel.tensor = 2: the groups of rank 0's summary, after a check that its trace and the
  // report have them, too.
  json train_divided(const Arguments& options, const std::string& ranks) const {
    Arguments all = {"backend.use=gloo_cpu", "profile.dir=traces", "parallel.tensor=2",
                     R"(parallel.tensor_plan=["fc1 = colwise", "fc2 = rowwise"])"};
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = train(all, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    if (outcome.exit_code != 0) return json::object();
    const json trace = read("trace-rank0.json");
    std::map<std::string, size_t> traced;  // operations: an asynchronous one has two events
    for (const json& event : trace.at("traceEvents")) {
      const json arguments = event.value("args", json::object());
      if (!arguments.contains("group")) continue;
      if (event.value("name", "") == "wait" || event.value("ph", "") == "e") continue;
      ++traced[arguments.at("group").get<std::string>()];
    }
    const json groups = read("profile-rank0.json").at("groups");
    const std::string report = here_.coupler({"report", "traces"}).out;
    EXPECT_EQ(traced.size(), groups.size()) << groups;
    for (const auto& [name, group] : groups.items()) {
      EXPECT_EQ(traced[name], group.at("count").get<size_t>()) << name;
      expect_in(report, "rank 0, " + name + ": " + group.at("count").dump() + " operation");
    }
    return groups;
  }
  bool exists(const std::string& name) const {
    return std::filesystem::exists(here_.path() / "traces" / name);
  }

  Workplace here_;
};

TEST_F(Profiles, OfThreeSteps_HaveOperationsCollectivesAndWaits) {
  const Outcome outcome =
      train({"backend.use=gloo_cpu", "profile.dir=traces", "profile.skip_first=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (int rank = 0; rank < 2; ++rank) {
    const json trace = read("trace-rank" + std::to_string(rank) + ".json");
    ASSERT_TRUE(trace.is_object()) << rank;
    const auto names = names_in(trace);
    EXPECT_GE(names.count("aten::addmm") + names.count("aten::linear"), 3u);
    EXPECT_GE(names.count("all_reduce"), 3u);
    size_t waits = 0;
    for (const json& event : trace.at("traceEvents")) waits += event.value("cat", "") == "wait";
    EXPECT_GE(waits, 1u);
    const json summary = read("profile-rank" + std::to_string(rank) + ".json");
    EXPECT_EQ(summary.at("step_seconds").size(), 3u);
    EXPECT_GT(summary.at("communication").at("all_reduce").at("bytes"), 0);
    ASSERT_EQ(summary.at("groups").size(), 1u) << summary;
    const json& world = summary.at("groups").at("world");
    EXPECT_GE(world.at("count"), 3) << "no mesh is configured";
    EXPECT_GT(world.at("waiting_seconds"), 0.0);
    EXPECT_LE(world.at("waiting_seconds"), summary.at("waiting_seconds"));
  }
  // Spans lie within LibTorch's events, so both use the same clock.
  const json trace = read("trace-rank0.json");
  double first = 1e300, last = -1e300;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "cpu_op") continue;
    first = std::min(first, event.at("ts").get<double>());
    last = std::max(last, event.at("ts").get<double>());
  }
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "communication") continue;
    EXPECT_GT(event.at("ts").get<double>(), first - 1e5);
    EXPECT_LT(event.at("ts").get<double>(), last + 1e5);
  }
  const json merged = read("trace.json");
  ASSERT_TRUE(merged.is_object());
  std::set<int64_t> ranks;
  for (const json& event : merged.at("traceEvents"))
    if (event.contains("pid") && event["pid"].is_number_integer())
      ranks.insert(event["pid"].get<int64_t>() / 10'000'000);
  EXPECT_EQ(ranks, (std::set<int64_t>{0, 1}));
  // Ids that must be unique to each rank, such as arrows from forward to backward.
  std::set<std::string> numbered;
  for (const json& event : merged.at("traceEvents")) {
    if (!event.contains("id")) continue;
    ASSERT_TRUE(event["id"].is_string()) << event;
    numbered.insert(event["id"].get<std::string>().substr(0, 2));
  }
  EXPECT_EQ(numbered, (std::set<std::string>{"0-", "1-"}));
  EXPECT_EQ(here_.coupler({"report", "traces"}).exit_code, 0);
}

TEST_F(Profiles, OfATensorGroup_SayThatItCommunicates) {
  const json groups = train_divided({}, "2");
  ASSERT_EQ(groups.size(), 1u) << groups;
  EXPECT_GE(groups.at("tensor").at("count"), 3) << "the results of fc2 are summed in each step";
  EXPECT_GT(groups.at("tensor").at("bytes"), 0);
  EXPECT_GT(groups.at("tensor").at("waiting_seconds"), 0.0);
}

TEST_F(Profiles, FullOfDataTimesTensor_TellTheirCommunicationApart) {
  const json groups = train_divided({"parallel.data=2"}, "4");
  ASSERT_TRUE(groups.contains("tensor") && groups.contains("data")) << groups;
  EXPECT_GE(groups.at("tensor").at("count"), 3) << "the results of fc2 are summed in each step";
  EXPECT_GE(groups.at("data").at("count"), 3) << "gradients are averaged in each step";
  // A rank has 4,810 of the 9,610 parameters' gradients; 16 rows of 10 results.
  EXPECT_GE(groups.at("data").at("bytes"), 3 * 4'810 * 4);
  EXPECT_GE(groups.at("tensor").at("bytes"), 3 * 16 * 10 * 4);
}

TEST_F(Profiles, OfTwoRounds_AreTwoTraces) {
  const Outcome outcome = train({"backend.use=gloo_cpu", "profile.dir=traces", "profile.wait=2",
                                 "profile.warmup=0", "profile.active=1", "profile.repeat=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* name : {"trace-rank0.json", "trace-rank0-1.json", "trace-rank1-1.json",
                           "trace.json", "trace-1.json"})
    EXPECT_TRUE(exists(name)) << name;
  EXPECT_FALSE(exists("trace-rank0-2.json"));
}

// Otherwise rank 0 would join its trace with another rank's trace of the previous run.
TEST_F(Profiles, OfAnEarlierRun_AreRemoved) {
  std::filesystem::create_directory(here_.path() / "traces");
  const std::set<std::string> earlier = {"trace-rank1.json", "trace-rank0-7.json", "trace-7.json",
                                         "profile-rank5.json"};
  for (const std::string& name : earlier) here_.write("traces/" + name, "{}");
  here_.write("traces/trace-mine.json", "{}");
  // No step is profiled, so nothing new is written.
  const Outcome outcome =
      train({"backend.use=gloo_cpu", "profile.dir=traces", "profile.skip_first=100000"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string& name : earlier) EXPECT_FALSE(exists(name)) << name;
  EXPECT_TRUE(exists("trace-mine.json"));
}

TEST_F(Profiles, WhoseJoinedTraceCannotBeWritten_AreWarnedOf) {
  std::filesystem::create_directories(here_.path() / "traces" / "trace.json" / "in the way");
  const Outcome outcome = train({"backend.use=gloo_cpu", "profile.dir=traces"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "traces/trace.json is not written: ")) << outcome.err;
}

TEST_F(Profiles, UnderFsdp_NameGathers) {
  const Outcome outcome = train(
      {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "profile.dir=traces", "profile.active=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto names = names_in(read("trace-rank1.json"));
  EXPECT_GE(names.count("gather") + names.count("prefetch"), 2u);
  EXPECT_GE(names.count("all_gather") + names.count("all_gather_v"), 1u);
}

TEST_F(Profiles, ThatTrainingEndsIn_AreWrittenAllTheSame) {
  const Outcome outcome =
      train({"backend.use=gloo_cpu", "profile.dir=traces", "profile.active=100000"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(read("trace.json").is_object());
}

TEST_F(Profiles, WhereNothingCanBeWritten_TrainingGoesOn) {
  here_.write("traces", "a file");
  const Outcome outcome = train({"backend.use=gloo_cpu", "profile.dir=traces"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "nothing is profiled on rank 0")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "profile.dir")) << outcome.err;
}

TEST_F(Profiles, OfTheConfiguration_HaveTheLastWordOverAScope) {
  const Outcome outcome = here_.coupler(
      {"launch", "-n", "1", "-o", "profile.dir=traces", PROFILE_CHECKS, "configured"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "profile.dir is traces")) << outcome.err;
}

TEST_F(Profiles, OfAnEarlierRun_AreGone) {
  here_.write("traces/trace-rank1-1.json", "an older run's second round");
  here_.write("traces/trace-rank1.json", "an older run's first round");
  const Outcome outcome = train({"backend.use=gloo_cpu", "profile.dir=traces"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(read("trace-rank1.json").is_object());
  EXPECT_FALSE(exists("trace-rank1-1.json"));
}

TEST_F(Profiles, ThatBeginTooLate_AreSaidToHaveRecordedNothing) {
  const Outcome outcome =
      train({"backend.use=gloo_cpu", "profile.dir=traces", "profile.skip_first=1000000"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "nothing is recorded in traces")) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "skips the first 1000002")) << outcome.err;
}

TEST_F(Profiles, OfNoSteps_AreRefused) {
  const Outcome outcome = train({"profile.dir=traces", "profile.active=0"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "profile.active")) << outcome.err;
}

}  // namespace
}  // namespace coupler
