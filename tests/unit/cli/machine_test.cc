// Reading a machine's properties, from copies of kernel files.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli/doctor/checks.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/system_info.h"
#include "cli/machine/text_values.h"

namespace coupler::cli {
namespace {

class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    std::string name = (std::filesystem::temp_directory_path() / "coupler-machine-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~MachineTest() override {
    std::error_code left_behind;
    std::filesystem::remove_all(root_, left_behind);
  }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  std::string root_;
};

TEST_F(MachineTest, CgroupV2_TheTightestGroupCounts) {
  write("/proc/self/cgroup", "0::/job/step");
  write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids");
  write("/sys/fs/cgroup/job/memory.max", "8589934592");
  write("/sys/fs/cgroup/job/step/memory.max", "max");
  write("/sys/fs/cgroup/job/cpu.max", "max 100000");
  write("/sys/fs/cgroup/job/step/cpu.max", "150000 100000");
  write("/sys/fs/cgroup/job/pids.max", "512");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.version, 2);
  EXPECT_EQ(limits.memory, uint64_t{8589934592});
  EXPECT_EQ(limits.cpus, 1.5);
  EXPECT_EQ(limits.processes, 512u);
  EXPECT_EQ(describe(limits), "v2, memory 8.0 GiB, 1.5 processors' time, 512 processes");
}

TEST_F(MachineTest, CgroupV1_EachControllerHasItsOwnFolder) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n3:pids:/\n0::/");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648");  // all that a container sees
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  write("/sys/fs/cgroup/pids/pids.max", "max");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.version, 1);
  EXPECT_EQ(limits.memory, uint64_t{2147483648});
  EXPECT_EQ(limits.cpus, 0.5);
  EXPECT_FALSE(limits.processes);
}

TEST_F(MachineTest, NoCgroup_HasNoLimits) {
  EXPECT_EQ(describe(cgroup_limits(root_)), "the kernel shows none");
  write("/proc/self/cgroup", "4:memory:/");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "9223372036854771712");  // cgroup version 1's "none"
  EXPECT_EQ(describe(cgroup_limits(root_)), "v1, no limits");
}

TEST_F(MachineTest, Version_IsInAHeader) {
  write("/mpi.h", "#define OMPI_MAJOR 4\n#define OMPI_MINOR 1\n#define OMPI_RELEASE 4");
  EXPECT_EQ(version_in(root_ + "/mpi.h", {"OMPI_MAJOR", "OMPI_MINOR", "OMPI_RELEASE"}), "4.1.4");
  EXPECT_EQ(version_in(root_ + "/mpi.h", {"OMPI_MAJOR", "OMPI_MINOR", "OMPI_PATCH"}), "");
}

TEST_F(MachineTest, Gpus_AreNamedByTheDriver) {
  EXPECT_EQ(describe_gpus(gpu_info(root_)), "none");
  write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200");
  write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de");
  write("/sys/bus/pci/devices/0000:02:00.0/class", "0x030000");
  write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x8086");
  EXPECT_EQ(describe_gpus(gpu_info(root_)), "1 NVIDIA, no driver loaded");
  EXPECT_EQ(describe_driver(gpu_info(root_)), "none");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build");
  write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 3");
  EXPECT_EQ(describe_driver(gpu_info(root_)), "580.65.06");
  EXPECT_EQ(describe_gpus(gpu_info(root_)), "1 x NVIDIA H200");
}

TEST_F(MachineTest, Governor_ThatSavesPowerIsAWarning) {
  EXPECT_EQ(check_frequency(root_)[0].level, Level::kOk);
  const std::string cpu = "/sys/devices/system/cpu/cpu0/cpufreq/";
  write(cpu + "scaling_governor", "powersave");
  write(cpu + "scaling_driver", "acpi-cpufreq");
  EXPECT_EQ(check_frequency(root_)[0].level, Level::kWarning);
  EXPECT_EQ(check_frequency(root_)[0].what, "1 of 1 processors use the powersave governor");
  // The same setting under a driver that manages frequencies itself.
  write(cpu + "scaling_driver", "intel_pstate");
  write(cpu + "energy_performance_preference", "balance_performance");
  EXPECT_EQ(check_frequency(root_)[0].level, Level::kOk);
  write(cpu + "energy_performance_preference", "power");
  EXPECT_EQ(check_frequency(root_)[0].level, Level::kWarning);
}

TEST_F(MachineTest, HugePages_ThatAreOffAreANote) {
  EXPECT_EQ(check_huge_pages(root_)[0].level, Level::kOk);
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  EXPECT_EQ(check_huge_pages(root_)[0].level, Level::kOk);
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  EXPECT_EQ(check_huge_pages(root_)[0].level, Level::kNote);
}

TEST_F(MachineTest, SlowClock_IsAWarning) {
  write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
  EXPECT_EQ(check_clock(root_)[0].level, Level::kWarning);
  write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
  EXPECT_NE(check_clock(root_)[0].level, Level::kWarning);
}

}  // namespace
}  // namespace coupler::cli
