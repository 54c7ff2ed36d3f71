// A rank is killed or stopped at any moment: it is named, the others end, nothing is left behind.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "../launch/coupler_run.h"
#include "../launch/expect.h"

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

constexpr int kWorldSize = 3;
// The promise is one second; the test allows ten times as long.
constexpr auto kPromised = 10s;

struct Loss {
  const char* backend;
  const char* moment;
  int signal;
};

void PrintTo(const Loss& loss, std::ostream* out) {
  *out << loss.backend << ", " << loss.moment << ", signal " << loss.signal;
}

class PeersTest : public ::testing::TestWithParam<Loss> {
 protected:
  void SetUp() override {
    if (GetParam().backend == std::string("mpi") &&
        !std::filesystem::exists("/usr/bin/mpirun.openmpi")) {
      GTEST_SKIP() << "mpirun.openmpi (Debian: openmpi-bin) is not installed";
    }
  }
};

std::vector<std::string> peer_job(const std::string& moment, const std::string& backend) {
  // Far longer than the promise, so the operations' deadline does not end the job.
  return launch(kWorldSize,
                {COUPLER_BINARY_DIR "/bin/tests/peer_job", "-o", "backend.timeout=50s", moment},
                backend);
}

TEST_P(PeersTest, LostPeer_IsNamed_AndNothingIsLeft) {
  const auto [backend, moment, signal] = GetParam();
  CouplerRun run(peer_job(moment, backend));
  pid_t victim = -1;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    victim = run.wait_for_pid(fmt::format("pid.{}", rank));
    ASSERT_GT(victim, 0) << run.wait(0s).error;
  }
  std::this_thread::sleep_for(100ms);  // then the others wait for it
  ::kill(victim, signal);
  const auto result = run.wait(kPromised);
  if (signal == SIGKILL) {
    EXPECT_EQ(result.code, 128 + SIGKILL) << result.error;
    EXPECT_SAYS(result.error, "coupler: rank 2 was killed by signal 9 (Killed)");
  } else {
    EXPECT_EQ(result.code, 4) << result.error;
    EXPECT_SAYS(result.error, fmt::format("coupler: rank 2 (process {}) is stopped", victim));
    EXPECT_SAYS_NOT(result.error, "rank 2 was killed");
  }
  EXPECT_TRUE(run.is_all_gone());
}

std::vector<Loss> all_losses() {
  std::vector<Loss> losses;
  for (const char* backend : {"gloo_cpu", "mpi", "shm"}) {
    for (const char* moment : {"init", "collective", "between", "end", "left"}) {
      for (const int signal : {SIGKILL, SIGSTOP}) losses.push_back({backend, moment, signal});
    }
  }
  return losses;
}

INSTANTIATE_TEST_SUITE_P(All, PeersTest, ::testing::ValuesIn(all_losses()), [](const auto& row) {
  return fmt::format("{}_{}_{}", row.param.backend, row.param.moment,
                     row.param.signal == SIGKILL ? "killed" : "stopped");
});

TEST(Peers, StoppedBeforeItIsARank_IsNamed) {
  CouplerRun run(launch_script(2, "echo $$ > pid.$COUPLER_RANK; sleep 60"));
  const pid_t victim = run.wait_for_pid("pid.1");
  ::kill(victim, SIGSTOP);
  const auto result = run.wait(kPromised);
  EXPECT_EQ(result.code, 4) << result.error;
  EXPECT_SAYS(result.error, fmt::format("coupler: rank 1 (process {}) is stopped", victim));
  EXPECT_TRUE(run.is_all_gone());
}

TEST(Peers, WholeJobStoppedAndContinued_GoesOn) {
  CouplerRun run(peer_job("collective", "gloo_cpu"));
  for (int rank = 0; rank < kWorldSize; ++rank) run.wait_for_pid(fmt::format("pid.{}", rank));
  run.signal(SIGTSTP);  // like the terminal's stop key
  std::this_thread::sleep_for(2s);
  run.signal(SIGCONT);
  EXPECT_EQ(run.wait(2s).code, -1) << "it ended: " << run.wait(0s).error;
}

TEST(Peers, WithoutPeerTimeout_AStoppedRankIsWaitedFor) {
  auto words = peer_job("collective", "gloo_cpu");
  words.insert(words.begin() + 1, {"-o", "backend.peer_timeout=0s"});
  CouplerRun run(words);
  for (int rank = 0; rank < kWorldSize; ++rank) run.wait_for_pid(fmt::format("pid.{}", rank));
  const pid_t victim = run.wait_for_pid("pid.2");
  ::kill(victim, SIGSTOP);
  EXPECT_EQ(run.wait(2s).code, -1) << "it ended: " << run.wait(0s).error;
  ::kill(victim, SIGCONT);
  EXPECT_EQ(run.wait(500ms).code, -1) << "it ended: " << run.wait(0s).error;
}

}  // namespace
}  // namespace coupler::testing_launch
