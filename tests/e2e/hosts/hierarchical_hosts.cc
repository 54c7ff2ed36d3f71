#include "hierarchical_hosts.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

namespace coupler {
namespace {

constexpr int kMeetingPort = 29500;  // always free: the network is the test's own

}  // namespace

void HierarchicalHosts::SetUp() {
  if (const std::string reason = TwoHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  hosts_ = std::make_unique<TwoHosts>();
  std::string name = ::testing::TempDir() + "coupler-hierarchical-XXXXXX";
  folder_ = ::mkdtemp(name.data());
  std::ofstream(folder_ / "secret") << std::string(32, 's');
  ::chmod((folder_ / "secret").c_str(), 0600);
}

void HierarchicalHosts::TearDown() {
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
}

std::string HierarchicalHosts::ranks_script(const std::string& before, int begin, int local_size,
                                            int said, int world_size,
                                            const std::string& command) const {
  const std::filesystem::path path = folder_ / fmt::format("from-{}.sh", begin);
  std::ofstream script(path);
  script << fmt::format("cd {}\n{}\nexport MASTER_ADDR={} MASTER_PORT={} WORLD_SIZE={}\npids=\n",
                        folder_.string(), before, TwoHosts::address(0), kMeetingPort, world_size);
  for (int local = 0; local < local_size; ++local) {
    script << fmt::format(
        "RANK={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} {} "
        "-o backend.hierarchical.across=gloo_cpu -o backend.interface={} "
        "-o launch.secret_file={}/secret &\npids=\"$pids $!\"\n",
        begin + local, local, said, command, TwoHosts::kInterface, folder_.string());
  }
  script << "worst=0\nfor pid in $pids; do\n  wait $pid\n  code=$?\n"
            "  [ $code -gt $worst ] && worst=$code\ndone\nexit $worst\n";
  return path;
}

// The second host has process ids of its own: its ranks cannot ask the kernel about the others, nor
// share memory with them.
TwoHosts::Result HierarchicalHosts::run(HostRanks ranks, const std::string& program, HostRanks said,
                                        const std::string& use) const {
  const int all = ranks.first + ranks.second;
  const std::string command =
      fmt::format("{}/bin/tests/{} -o backend.use={}", COUPLER_BINARY_DIR, program, use);
  const std::string on_first = ranks_script("", 0, ranks.first, said.first, all, command);
  const std::string on_second =
      ranks_script(before_second_, ranks.first, ranks.second, said.second, all, command);
  return hosts_->run("sh " + on_first,
                     "unshare --pid --fork --mount-proc --kill-child sh " + on_second);
}

}  // namespace coupler
