#include "cli/machine/cpu_binding.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "refusal.h"

namespace coupler::cli {
namespace {

using Lists = std::vector<std::vector<int>>;

// A machine as the kernel presents it: two NUMA nodes with two cores of two threads each. As Linux
// numbers them, threads 4 to 7 are the second threads of cores 0 to 3.
class BindingTest : public ::testing::Test {
 protected:
  BindingTest() {
    char name[] = "/tmp/coupler-sys-XXXXXX";
    root_ = ::mkdtemp(name);
    write("node/online", "0-1");
    write("node/node0/cpulist", "0-1,4-5");
    write("node/node1/cpulist", "2-3,6-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const int core = cpu % 4;
      write("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            std::to_string(core) + "," + std::to_string(core + 4));
    }
  }
  ~BindingTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text << "\n";
  }
  Lists bind(Bind bind, int ranks,
             const std::vector<int>& usable = {0, 1, 2, 3, 4, 5, 6, 7}) const {
    return bind_ranks(bind, read_topology(usable, root_), ranks);
  }

  std::string root_;
};

TEST_F(BindingTest, Cores_AreDivided_ThreadsStayTogether_NeighboursShareANode) {
  EXPECT_EQ(bind(Bind::kCore, 4), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(bind(Bind::kCore, 2), (Lists{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(bind(Bind::kCore, 3), (Lists{{0, 4}, {1, 5}, {2, 6, 3, 7}}));
}

TEST_F(BindingTest, Numa_GivesWholeNodes) {
  EXPECT_EQ(bind(Bind::kNuma, 2), (Lists{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(bind(Bind::kNuma, 4), (Lists{{0, 4, 1, 5}, {0, 4, 1, 5}, {2, 6, 3, 7}, {2, 6, 3, 7}}));
  EXPECT_EQ(bind(Bind::kNuma, 1), (Lists{{0, 4, 1, 5}}));
}

TEST_F(BindingTest, ProcessorsThatMayNotBeUsed_AreLeftOut) {
  EXPECT_EQ(bind(Bind::kCore, 2, {3, 6}), (Lists{{6}, {3}}));
  EXPECT_EQ(bind(Bind::kNuma, 2, {1, 2, 3}), (Lists{{1}, {2, 3}}));
}

TEST_F(BindingTest, None_BindsNothing_WhateverTheNumber) {
  EXPECT_EQ(bind(Bind::kNone, 9), Lists(9));
}

TEST_F(BindingTest, MoreRanksThanCores_AreRefused_NamingBothNumbers) {
  for (const Bind policy : {Bind::kCore, Bind::kNuma}) {
    const auto text = refusal([&] { bind(policy, 5); });
    EXPECT_SAYS(text, "5 processes cannot be bound to 4 cores");
    EXPECT_SAYS(text, "--bind none");
  }
}

TEST_F(BindingTest, KernelThatTellsNothing_EveryProcessorIsACore) {
  const auto lists = bind_ranks(Bind::kCore, read_topology({0, 2, 5}, root_ + "/none"), 3);
  EXPECT_EQ(lists, (Lists{{0}, {2}, {5}}));
}

TEST(CpuLists, AreWrittenAndRead_AsTheKernelDoes) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(format_cpu_list({11, 8, 10, 0, 1, 2, 3}), "0-3,8,10-11");
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  EXPECT_EQ(parse_cpu_list("x"), std::vector<int>{});
  EXPECT_FALSE(usable_cpus().empty());
}

}  // namespace
}  // namespace coupler::cli
