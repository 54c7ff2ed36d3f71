// Ranks on one machine do not listen on ports, to which other users could connect. Over mpi they
// do, because Open MPI listens (SECURITY.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "coupler_run.h"

namespace coupler::testing_launch {
namespace {

namespace fs = std::filesystem;

// "socket:[INODE]" of the sockets that listen on TCP.
std::set<std::string> listening_sockets() {
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      if (state == "0A") found.insert(fmt::format("socket:[{}]", inode));  // TCP_LISTEN
    }
  }
  return found;
}

int listeners_of(pid_t pid) {
  const std::set<std::string> listening = listening_sockets();
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    std::error_code closed;  // it may be closed since it was listed
    count += listening.contains(fs::read_symlink(entry.path(), closed).string()) ? 1 : 0;
  }
  return count;
}

class Listeners : public ::testing::TestWithParam<const char*> {};

TEST_P(Listeners, OnOneMachine_NoRankHasAny) {
  const CouplerRun run(launch_script(
      2, fmt::format("exec {}/bin/tests/peer_job collective", COUPLER_BINARY_DIR), GetParam()));
  for (const char* rank : {"pid.0", "pid.1"}) {
    const pid_t pid = run.wait_for_pid(rank);
    ASSERT_GT(pid, 0) << run.folder();
    EXPECT_EQ(listeners_of(pid), 0) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Listeners, ::testing::Values("gloo_cpu", "shm"));

}  // namespace
}  // namespace coupler::testing_launch
