// HierarchicalHosts: a fixture that runs ranks of the backend hierarchical on two hosts, with
// shared memory within each and sockets on the wire between them. The ranks are started one by one,
// as a cluster may do it, so that the hosts may have different numbers of them. Used by one thread
// at a time, except that hosts_ has its own rule.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "two_hosts.h"

namespace coupler {

struct HostRanks {
  int first = 0;
  int second = 0;
};

class HierarchicalHosts : public ::testing::Test {
 protected:
  void SetUp() override;  // skips, with the reason, where there can be no hosts
  void TearDown() override;

  // Runs that many ranks of `program`, a file of bin/tests with its arguments, on the hosts.
  // `said`: how many each host is said to have. use: backend.use, hierarchical or what stands on
  // it.
  TwoHosts::Result run(HostRanks ranks, const std::string& program, HostRanks said,
                       const std::string& use = "hierarchical") const;

  std::unique_ptr<TwoHosts> hosts_;
  std::filesystem::path folder_;  // for this test, on both hosts
  std::string before_second_;     // a line of sh for the second host, before its ranks

 private:
  // A script that runs `before` and `local_size` ranks of a host, beginning with `begin`, and ends
  // with the highest of their exit codes. It says that the host has `said` ranks.
  std::string ranks_script(const std::string& before, int begin, int local_size, int said,
                           int world_size, const std::string& command) const;
};

}  // namespace coupler
