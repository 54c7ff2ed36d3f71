// How many processes a job has: the options of four launchers, the configuration and a hostfile.
#include "cli/launch/process_count.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cli/machine/system_info.h"
#include "parsed_options.h"
#include "refusal.h"

namespace coupler::cli {
namespace {

using Words = std::vector<std::string>;

// A hostfile of this machine or others, which the test removes.
class HostsFile {
 public:
  explicit HostsFile(const std::string& text) {
    char name[] = "/tmp/coupler-hosts-XXXXXX";
    ::close(::mkstemp(name));
    path_ = name;
    std::ofstream(path_) << text;
  }
  HostsFile(const HostsFile&) = delete;
  HostsFile& operator=(const HostsFile&) = delete;
  ~HostsFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ProcessCount count(const Words& words, const config::Config& config = {}) {
  LaunchOptions options = parsed_options(words);
  apply_host_choice(options);
  return count_processes(options, config, options.machines.value_or(1));
}

std::string count_problem(const Words& words) {
  return refusal([&] { count(words); });
}

TEST(ProcessCount, OfMoreThanAJobCanHave_IsRefused_NamingBothOptions) {
  const std::string overflow = count_problem({"--machines", "1048576", "--per-machine", "4096"});
  EXPECT_SAYS(overflow, "--machines 1048576 and --per-machine 4096 ask for 4294967296 processes");
  EXPECT_SAYS(overflow, "more than a job can have (1048576)");
  EXPECT_SAYS(count_problem({"--nnodes", "524288", "--nproc_per_node", "4096"}),
              "--nnodes 524288 and --nproc_per_node 4096 ask for 2147483648 processes");
  EXPECT_SAYS(count_problem({"-n", "4", "--machines", "1048576", "--per-machine", "4096"}),
              "-n 4 and --per-machine 4096 contradict each other");
  EXPECT_EQ(count({"--machines", "256", "--per-machine", "4096"}).processes, 1 << 20);
}

TEST(ProcessCount, WithAHostfile_IsItsSlots_UnlessANumberIsGiven) {
  const HostsFile hosts("localhost slots=3\n127.0.0.1 slots=2\n");
  for (const char* word : {"-H", "--deepspeed_hostfile", "--mpirun_hostfile"})
    EXPECT_EQ(count({word, hosts.path()}).processes, 5) << word;
  EXPECT_EQ(count({"-H", hosts.path(), "-n", "4"}).processes, 4);
  config::Config config;
  config.launch.processes = 2;
  config.sources["launch.processes"] = {config::ValueSource::Kind::kFile, "train.toml:2:1"};
  EXPECT_EQ(count({"-H", hosts.path()}, config).processes, 2);
  EXPECT_EQ(count({"-H", hosts.path(), "--num_nodes", "1"}, config).processes, 3);
}

TEST(ProcessCount, PerMachine_WithAHostfile_IsRefused_NamingWhatDoesIt) {
  const HostsFile hosts("node1 slots=4\nnode2 slots=4\n");
  for (const char* word : {"--per-machine", "--nproc_per_node"}) {
    const std::string problem = count_problem({"-H", hosts.path(), word, "2"});
    EXPECT_SAYS(problem, std::string(word) + " 2 does not apply to the machines of");
    EXPECT_SAYS(problem, "use --num_gpus N for N processes on each of them");
  }
}

TEST(ProcessCount, OfMachines_WithAHostfile_AreItsFirstOnes) {
  const HostsFile hosts("node1 slots=4\nnode2 slots=4\nnode3 slots=4\n");
  for (const char* word : {"--num_machines", "--nnodes", "--machines"}) {
    const ProcessCount all =
        count({"--mpirun_hostfile", hosts.path(), word, "3", "--num_processes", "10"});
    EXPECT_EQ(all.processes, 10);
    EXPECT_EQ(all.host_file.hosts.size(), 3U);
    const ProcessCount two = count({"-H", hosts.path(), word, "2"});
    EXPECT_EQ(two.processes, 8);
    EXPECT_EQ(host_list(two.host_file), "node1:4,node2:4");
    EXPECT_SAYS(count_problem({"-H", hosts.path(), word, "4"}), std::string(word) + " 4: ");
  }
  EXPECT_SAYS(count_problem({"-H", hosts.path(), "--num_machines", "2", "--num_nodes", "3"}),
              "--num_nodes 3 and --num_machines 2 contradict each other");
}

TEST(ProcessCount, DevicesOfThisMachine_AreRefused_ForRanksOnOthers) {
  const HostsFile elsewhere("localhost slots=2\nnode7.invalid slots=2\n");
  const std::string problem = count_problem({"-H", elsewhere.path(), "--gpu_ids", "2,3"});
  EXPECT_SAYS(problem, "--gpu_ids 2,3 names devices of this machine");
  EXPECT_SAYS(problem, "node7.invalid");
  EXPECT_SAYS(problem, "set CUDA_VISIBLE_DEVICES on a machine");
  EXPECT_EQ(count({"-H", elsewhere.path(), "--gpu_ids", "2,3", "--num_nodes", "1"}).processes, 2);
}

TEST(ProcessCount, OfMultiGpu_IsThatOfItsDevices_OrMustBeGiven) {
  EXPECT_EQ(count({"--multi_gpu", "--gpu_ids", "1,3,5"}).processes, 3);
  EXPECT_EQ(count({"--multi_gpu", "-n", "2"}).processes, 2);
  EXPECT_EQ(count({"--multi_gpu", "--gpu_ids", "0,1", "--machines", "2"}).processes, 4);
  config::Config config;
  config.sources["launch.processes"] = {config::ValueSource::Kind::kFile, "train.toml:2:1"};
  EXPECT_EQ(count({"--multi_gpu"}, config).processes, 1);
  if (!visible_gpus().empty()) return;  // they are counted
  for (const Words& words : {Words{"--multi_gpu"}, Words{"--multi_gpu", "--gpu_ids", "all"}}) {
    const std::string problem = count_problem(words);
    EXPECT_SAYS(problem, "--multi_gpu does not say how many processes to start, and no NVIDIA GPU");
    EXPECT_SAYS(problem, "give -n N");
  }
}

}  // namespace
}  // namespace coupler::cli
