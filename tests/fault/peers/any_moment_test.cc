// The backends in shared memory, again and again: any rank is killed or stopped at any moment of
// collectives of any size; and many ranks on few cores, none of which may be forgotten asleep.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <thread>

#include "../launch/coupler_run.h"
#include "../launch/expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

// The promise is one second; the test allows ten times as long.
constexpr auto kNamedWithin = 10s;

struct Shared {
  const char* backend;
  const char* machines;  // of 4 ranks, and
  const char* crowded;   // of 8
};

void PrintTo(const Shared& shared, std::ostream* out) { *out << shared.backend; }

class AnyMoment : public ::testing::TestWithParam<Shared> {
 protected:
  // divided: large data goes through every stage in many chunks, even if it is small.
  static std::vector<std::string> job(int ranks, bool divided,
                                      const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {COUPLER_BINARY_DIR "/bin/tests/peer_job", "-o",
                                      "backend.timeout=50s"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words = launch(ranks, words, GetParam().backend);
    std::vector<std::string> options = {"-o", "backend.hierarchical.across=gloo_cpu"};
    if (divided)
      options.insert(options.end(), {"-o", "backend.hierarchical.small_bytes=0", "-o",
                                     "backend.hierarchical.chunk_bytes=4096"});
    words.insert(words.begin() + 1, options.begin(), options.end());
    return words;
  }
};

TEST_P(AnyMoment, KilledOrStoppedRank_IsNamed_AndNothingIsLeft) {
  constexpr int kRanks = 4;
  std::mt19937 random(7);  // the same moments each time, as far as a scheduler allows
  const int runs = kill_count(5) * 7 / 5;
  for (int i = 0; i < runs && !HasFailure(); ++i) {
    const int number = i % 7 < 5 ? SIGKILL : SIGSTOP;
    const auto lost = static_cast<size_t>(random() % kRanks);
    CouplerRun run(job(kRanks, random() % 2 == 0, {"sizes", GetParam().machines}));
    std::vector<pid_t> pids;
    for (int rank = 0; rank < kRanks; ++rank)
      pids.push_back(run.wait_for_pid(fmt::format("pid.{}", rank)));
    ASSERT_GT(*std::min_element(pids.begin(), pids.end()), 0) << run.wait(0s).error;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
    ::kill(pids[lost], number);
    const auto result = run.wait(kNamedWithin);
    SCOPED_TRACE(fmt::format("run {}, rank {}, signal {}", i, lost, number));
    if (number == SIGKILL) {
      EXPECT_EQ(result.code, 128 + SIGKILL) << result.error;
      EXPECT_SAYS(result.error, fmt::format("coupler: rank {} was killed by signal 9", lost));
    } else {
      EXPECT_EQ(result.code, 4) << result.error;
      EXPECT_SAYS(result.error,
                  fmt::format("coupler: rank {} (process {}) is stopped", lost, pids[lost]));
    }
    EXPECT_TRUE(run.is_all_gone());
  }
}

TEST_P(AnyMoment, ManyRoundsOfManyRanks_EndWithTheRightSums) {
  for (const bool divided : {false, true}) {
    const std::string rounds = std::to_string(kill_count(10) * 6 / 2);
    CouplerRun run(job(8, divided, {"rounds", GetParam().crowded, rounds}));
    const auto result = run.wait(20min);  // an operation that stalls ends before, at its deadline
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_TRUE(run.is_all_gone());
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyMoment,
                         ::testing::Values(Shared{"shm", "4", "8"},
                                           Shared{"hierarchical", "2,2", "4,4"}),
                         [](const auto& row) { return row.param.backend; });

}  // namespace
}  // namespace coupler::testing_launch
