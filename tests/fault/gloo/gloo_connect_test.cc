// How ranks of gloo_cpu connect: a peer without the job's secret is rejected, whatever it does, and
// does not delay the others; ranks whose settings differ get an error that names the difference.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ranks/crowd.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The ranks of one job as threads, each with its own settings.
struct RankSettings {
  int32_t size = 2;
  std::string secret = "one secret";
  std::string protect;  // "": not set
  int64_t timeout_ns = 20'000'000'000;
  int64_t late_ms = 0;
};

struct RankResult {
  db_status created = DB_ERR_INTERNAL;
  db_status reduced = DB_ERR_INTERNAL;
  float sum = 0;
  int32_t failed_rank = -1;
  std::string message;
};

std::vector<RankResult> run_ranks(const std::vector<RankSettings>& ranks) {
  const Folder folder;
  const DistributedBackend* const backend = load_backend();
  std::vector<RankResult> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const RankSettings& settings = ranks[i];
      std::this_thread::sleep_for(milliseconds(settings.late_ms));
      const db_option protect = {sizeof(db_option),        "protect", DB_OPTION_STRING, 0, 0, 0.0,
                                 settings.protect.c_str(), nullptr};
      Job job;
      job.size = settings.size;
      job.timeout_ns = settings.timeout_ns;
      if (!settings.protect.empty()) job.options = {&protect};
      const FileStore store(folder.path, settings.secret);
      Rank self(backend, job, static_cast<int32_t>(i), store.table());
      RankResult& result = results[i];
      result.created = self.created;
      if (self.created == DB_OK) {
        const float one = static_cast<float>(i + 1);
        result.reduced = self.run(all_reduce(&one, &result.sum, 1), true);
      }
      result.failed_rank = self.error.error.failed_rank;
      result.message = self.error.text.data();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(GlooConnect, EveryProtection_WithinAMachine_Reduces) {
  for (const char* protect : {"none", "mac", "tls"}) {
    const auto results = run_ranks(std::vector<RankSettings>(3, {.size = 3, .protect = protect}));
    for (const RankResult& result : results) {
      EXPECT_EQ(result.reduced, DB_OK) << protect << ": " << result.message;
      EXPECT_EQ(result.sum, 6.0f) << protect;
    }
  }
}

TEST(GlooConnect, HostWithoutASecret_ConnectsAndRefusesToProtect) {
  for (const RankResult& result : run_ranks(std::vector<RankSettings>(2, {.secret = ""}))) {
    EXPECT_EQ(result.sum, 3.0f) << result.message;
  }
  for (const RankResult& result :
       run_ranks(std::vector<RankSettings>(2, {.secret = "", .protect = "tls"}))) {
    EXPECT_EQ(result.created, DB_ERR_UNSUPPORTED);
    EXPECT_TRUE(contains(result.message, "option protect needs a job with a secret"))
        << result.message;
  }
}

TEST(GlooConnect, UnknownProtection_IsRefusedWithTheValidOnes) {
  const auto results = run_ranks(std::vector<RankSettings>(2, {.protect = "ssl"}));
  EXPECT_EQ(results[0].created, DB_ERR_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(results[0].message, "option 'protect' is 'ssl'; valid: none, mac, tls"))
      << results[0].message;
}

TEST(GlooConnect, RanksThatDisagreeOnProtection_AreToldWhichIsWhich) {
  const auto results = run_ranks({{.protect = "tls"}, {.protect = "none"}});
  EXPECT_EQ(results[0].created, DB_ERR_MISMATCH);
  EXPECT_EQ(results[1].created, DB_ERR_MISMATCH);
  EXPECT_TRUE(
      contains(results[1].message, R"(rank 0 has protect = "tls", but this rank has "none")"))
      << results[1].message;
}

TEST(GlooConnect, RanksThatDisagreeOnTheirNumber_AreTold) {
  const auto results = run_ranks({{.size = 3, .timeout_ns = 1'000'000'000}, {.size = 2}});
  EXPECT_EQ(results[1].created, DB_ERR_MISMATCH);
  EXPECT_EQ(results[1].failed_rank, 0);
  EXPECT_TRUE(contains(results[1].message, "a different number of ranks")) << results[1].message;
}

// Rank 0 waits longer, so that it does not leave first.
TEST(GlooConnect, RankWithAnotherSecret_IsNotTaken) {
  const auto results = run_ranks(
      {{.timeout_ns = 2'000'000'000}, {.secret = "a guess", .timeout_ns = 1'000'000'000}});
  EXPECT_EQ(results[0].created, DB_ERR_TIMEOUT) << results[0].message;
  EXPECT_EQ(results[1].created, DB_ERR_TIMEOUT) << results[1].message;
  EXPECT_EQ(results[1].failed_rank, 0);
  EXPECT_TRUE(contains(results[1].message, "does not hold this job's secret"))
      << results[1].message;
}

// Processes of the same user get as far as the greeting. Rank 1 connects after them.
TEST(GlooConnect, CrowdThatHoldsOrTalksNonsense_CostsOnlyItself) {
  Crowd crowd("gloo_cpu");
  const auto begin = steady_clock::now();
  const auto results =
      run_ranks({{.size = 3}, {.size = 3, .late_ms = 700}, {.size = 3, .late_ms = 900}});
  crowd.end();
  for (const RankResult& result : results) EXPECT_EQ(result.sum, 6.0f) << result.message;
  EXPECT_GT(crowd.connected(), 300);
  EXPECT_LT(milliseconds_since(begin), 15'000);
}

TEST(GlooConnect, OnceConnected_NothingListensAndNoFileIsLeft) {
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      if (contains(entry.path().string(), "coupler-gloo_cpu-")) names.insert(entry.path().string());
    return names;
  };
  const std::set<std::string> before = files();
  run_ranks(std::vector<RankSettings>(2));
  EXPECT_EQ(listening_paths("gloo_cpu").size(), 0u);
  for (const std::string& path : files()) {
    if (before.count(path) > 0) continue;
    // The file may belong to another running test; then it disappears.
    const auto begin = steady_clock::now();
    while (files().count(path) > 0 && milliseconds_since(begin) < 10'000)
      std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(files().count(path), 0u) << path;
  }
}

}  // namespace
}  // namespace backend_test
