// The backend hierarchical on two hosts: what it does there, over a slow wire, too, and what
// happens if a host dies or its ranks differ.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

#include "hierarchical_hosts.h"

namespace coupler {
namespace {

void kill_processes_of(const TwoHosts& hosts, int host) {
  std::istringstream pids(hosts.processes(host));
  for (pid_t pid = 0; pids >> pid;) ::kill(pid, SIGKILL);
}

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
    kill_processes_of(*hosts_, 1);
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

// shm alone, on hosts that differ in their boot ids, as machines do.
TEST_F(HierarchicalHosts, ShmAcrossHosts_BothNameTheOtherAndWhatToUse) {
  std::ofstream(folder_ / "boot_id") << "another-boot\n";
  before_second_ = "mount --bind boot_id /proc/sys/kernel/random/boot_id";
  const std::string program =
      fmt::format("coupler_matrix --rank-of options --folder {}", folder_.string());
  const auto result = run({2, 1}, program, {2, 1}, "shm");
  const std::string refusal =
      fmt::format("rank 2 runs on the machine {}, rank 0 on {}", hosts_->name(1), hosts_->name(0));
  for (size_t host = 0; host < 2; ++host) {
    EXPECT_NE(result.code[host], 0);
    for (const std::string& part : {refusal, std::string("set backend.use to \"hierarchical\"")})
      EXPECT_NE(result.output[host].find(part), std::string::npos)
          << part << " is not in: " << result.output[host];
  }
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
