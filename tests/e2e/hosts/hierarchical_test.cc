// The backend hierarchical on two hosts: shared memory within each, sockets on the wire between
// them. The ranks are started one by one, as a cluster may do it, so that the hosts may have
// different numbers of them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <thread>

#include "two_hosts.h"

namespace coupler {
namespace {

constexpr int kMeetingPort = 29500;  // always free: the network is the test's own

struct HostRanks {
  int first = 0;
  int second = 0;
};

class HierarchicalHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = TwoHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<TwoHosts>();
    std::string name = ::testing::TempDir() + "coupler-hierarchical-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    std::ofstream(folder_ / "secret") << std::string(32, 's');
    ::chmod((folder_ / "secret").c_str(), 0600);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // A script that runs `local_size` ranks of a host, beginning with `begin`, and ends with the
  // highest of their exit codes. It says that the host has `said` ranks.
  std::string ranks_script(int begin, int local_size, int said, int world_size,
                           const std::string& program) const {
    const std::filesystem::path path = folder_ / fmt::format("from-{}.sh", begin);
    std::ofstream script(path);
    script << fmt::format("cd {}\nexport MASTER_ADDR={} MASTER_PORT={} WORLD_SIZE={}\npids=\n",
                          folder_.string(), TwoHosts::address(0), kMeetingPort, world_size);
    for (int local = 0; local < local_size; ++local) {
      script << fmt::format(
          "RANK={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} {}/bin/tests/{} "
          "-o backend.use=hierarchical -o backend.hierarchical.across=gloo_cpu "
          "-o backend.interface={} -o launch.secret_file={}/secret &\npids=\"$pids $!\"\n",
          begin + local, local, said, COUPLER_BINARY_DIR, program, TwoHosts::kInterface,
          folder_.string());
    }
    script << "worst=0\nfor pid in $pids; do\n  wait $pid\n  code=$?\n"
              "  [ $code -gt $worst ] && worst=$code\ndone\nexit $worst\n";
    return path;
  }

  // The second host has process ids of its own: its ranks cannot ask the kernel about the others,
  // nor share memory with them.
  TwoHosts::Result run(HostRanks ranks, const std::string& program, HostRanks said) const {
    const int all = ranks.first + ranks.second;
    const std::string on_first = ranks_script(0, ranks.first, said.first, all, program);
    const std::string on_second =
        ranks_script(ranks.first, ranks.second, said.second, all, program);
    return hosts_->run("sh " + on_first,
                       "unshare --pid --fork --mount-proc --kill-child sh " + on_second);
  }

  void kill_second_host() const {
    std::istringstream pids(hosts_->processes(1));
    for (pid_t pid = 0; pids >> pid;) ::kill(pid, SIGKILL);
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::filesystem::path folder_;
};

// As many lanes as ranks, several, and one; a host that is busy is not lost.
TEST_F(HierarchicalHosts, Behaviors_AreThoseOfOneMachine) {
  const struct {
    HostRanks ranks;
    const char* behavior;
  } runs[] = {{{2, 2}, "operations"},
              {{3, 3}, "overlap"},
              {{3, 3}, "split"},
              {{3, 1}, "overlap"},
              {{3, 1}, "send_recv"}};
  for (const auto& [ranks, behavior] : runs) {
    const std::string program = fmt::format(
        "coupler_matrix --rank-of {} --cover pairs --complete 1 --folder {} "
        "-o backend.hierarchical.small_bytes=256 -o backend.peer_timeout=60s",
        behavior, folder_.string());
    const auto result = run(ranks, program, ranks);
    EXPECT_EQ(result.code[0], 0) << behavior << ": " << result.output[0];
    EXPECT_EQ(result.code[1], 0) << behavior << ": " << result.output[1];
  }
  std::ifstream report(folder_ / "rank-3");
  const std::string text(std::istreambuf_iterator<char>(report), {});
  EXPECT_NE(text.find("cells run"), std::string::npos) << text;
}

// As a network is: a message takes a thousand times as long as within a host, so chunks, stages and
// operations overlap in other ways.
TEST_F(HierarchicalHosts, SlowWire_BehaviorsAreTheSame) {
  if (const std::string reason = hosts_->slow_wire(); !reason.empty()) GTEST_SKIP() << reason;
  const struct {
    HostRanks ranks;
    const char* behavior;
    const char* options;
  } runs[] = {{{2, 2}, "overlap", "-o backend.hierarchical.chunk_bytes=4096"},
              {{2, 2}, "threads", ""},
              {{3, 1}, "split", "-o backend.hierarchical.small_bytes=0"}};
  for (const auto& [ranks, behavior, options] : runs) {
    const std::string program = fmt::format(
        "coupler_matrix --rank-of {} --cover pairs --complete 1 --folder {} {} "
        "-o backend.peer_timeout=60s",
        behavior, folder_.string(), options);
    const auto result = run(ranks, program, ranks);
    EXPECT_EQ(result.code[0], 0) << behavior << ": " << result.output[0];
    EXPECT_EQ(result.code[1], 0) << behavior << ": " << result.output[1];
  }
}

// It disappears from the network with everything on it. Its ranks are named, on every rank that is
// left, long before a deadline.
TEST_F(HierarchicalHosts, MachineThatDies_IsNoticedByAllOthers) {
  std::chrono::steady_clock::time_point died;
  std::thread death([&] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int rank = 0; rank < 4; ++rank) {
      while (!std::filesystem::exists(folder_ / fmt::format("pid.{}", rank)) &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    hosts_->cut_wire();
    kill_second_host();
    died = std::chrono::steady_clock::now();
  });
  const auto result = run({2, 2}, "peer_job -o backend.timeout=60s collective", {2, 2});
  death.join();
  EXPECT_LT(std::chrono::steady_clock::now() - died, std::chrono::seconds(30));
  EXPECT_EQ(result.code[0], 4) << result.output[0];
  // Each of the two ranks that are left reports it.
  const std::regex lost("coupler: error: [^\n]*rank [23] ");
  const std::string& text = result.output[0];
  EXPECT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), lost), {}), 2) << text;
}

TEST_F(HierarchicalHosts, RanksThatDifferInLocalSize_AreNamedOnBothHosts) {
  const std::string program =
      fmt::format("coupler_matrix --rank-of options --folder {}", folder_.string());
  const auto result = run({2, 1}, program, {2, 2});
  for (size_t host = 0; host < 2; ++host) {
    EXPECT_NE(result.code[host], 0);
    EXPECT_NE(result.output[host].find("none of the job's ranks has local rank 1 there"),
              std::string::npos)
        << result.output[host];
  }
}

}  // namespace
}  // namespace coupler
