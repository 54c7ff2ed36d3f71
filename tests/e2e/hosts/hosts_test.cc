// A job on two hosts with two ranks each: `coupler launch` on each host; the ranks meet in rank 0's
// store over the network. The hosts are network namespaces that the test creates.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "two_hosts.h"

namespace coupler {
namespace {

constexpr int kPort = 29500;  // always free: the network is the test's own

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = TwoHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<TwoHosts>();
    std::string name = ::testing::TempDir() + "coupler-hosts-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    secret_ = folder_ / "secret";
    std::ofstream(secret_) << std::string(32, 's');
    ::chmod(secret_.c_str(), 0600);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // The command of one host, without the options that `without` names.
  std::string launch(int host, const std::string& program,
                     const std::string& options =
                         "-o launch.secret_file=SECRET "
                         "-o backend.interface=wire") const {
    std::string text = std::regex_replace(options, std::regex("SECRET"), secret_);
    return fmt::format(
        "cd {} && {}/bin/coupler launch -n 4 --machines 2 --machine-rank {} --main-address {} "
        "--main-port {} -o backend.use=gloo_cpu {} {}",
        folder_.string(), COUPLER_BINARY_DIR, host, TwoHosts::address(0), kPort, text, program);
  }
  TwoHosts::Result run(const std::string& program) const {
    return hosts_->run(launch(0, program), launch(1, program));
  }

  // The same, with separate process ids on the second host, as on another machine: no rank can ask
  // the kernel about a process of the other host or share memory with it.
  TwoHosts::Result run_apart(const std::string& program) const {
    std::ofstream(folder_ / "second.sh") << launch(1, program) << "\n";
    return hosts_->run(launch(0, program),
                       fmt::format("unshare --pid --fork --mount-proc --kill-child sh {}",
                                   (folder_ / "second.sh").string()));
  }

  // One mpirun on the first host, which starts ranks on the other host through an agent.
  std::string via_mpirun(const std::string& backend, const std::string& program) const {
    std::ofstream(folder_ / "hosts") << TwoHosts::address(0) << " slots=2\n"
                                     << TwoHosts::address(1) << " slots=2\n";
    return fmt::format(
        "cd {} && OMPI_MCA_plm_rsh_agent={} OMPI_MCA_oob_tcp_if_include=wire "
        "OMPI_MCA_btl_tcp_if_include=wire exec {}/bin/coupler launch --via mpirun --hostfile "
        "hosts -n 4 -o launch.secret_file={} {} {}",
        folder_.string(), hosts_->write_agent(folder_), COUPLER_BINARY_DIR, secret_, backend,
        program);
  }
  TwoHosts::Result run_via_mpirun(const std::string& backend, const std::string& program) const {
    return hosts_->run(via_mpirun(backend, program), "true");
  }
  std::string write_script(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }

  static std::string meet() {
    return std::string(COUPLER_BINARY_DIR) + "/bin/tests/rendezvous_meet";
  }
  static std::string job() { return std::string(COUPLER_BINARY_DIR) + "/bin/tests/peer_job"; }
  static void await_file(const std::filesystem::path& path) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::filesystem::path folder_;
  std::string secret_;
};

TEST_F(Hosts, AllRanksMeet_WithTlsToo) {
  for (const char* tls : {"false", "true"}) {
    const auto program = meet();
    const auto options =
        fmt::format("-o launch.secret_file=SECRET -o backend.interface=wire -o launch.tls={}", tls);
    const auto result = hosts_->run(launch(0, program, options), launch(1, program, options));
    for (int rank = 0; rank < 4; ++rank) {
      expect_part(result.output[rank < 2 ? 0 : 1], fmt::format("rank {} of 4 met 4", rank));
    }
    EXPECT_EQ(result.code[0], 0);
    EXPECT_EQ(result.code[1], 0);
  }
}

TEST_F(Hosts, NoSecretOrInterface_EveryHostSaysWhatIsMissing) {
  const auto run_with = [&](const std::string& options) {
    return hosts_->run(launch(0, meet(), options), launch(1, meet(), options));
  };
  const auto without_secret = run_with("-o backend.interface=wire");
  const auto without_interface = run_with("-o launch.secret_file=SECRET");
  for (size_t host = 0; host < 2; ++host) {
    expect_part(without_secret.output[host],
                "2 of 4 ranks run on this machine, but launch.secret_file");
    EXPECT_EQ(without_secret.code[host], 2);
    expect_part(without_interface.output[host], "but backend.interface, through which");
    expect_part(without_interface.output[host],
                fmt::format("wire ({})", TwoHosts::address(static_cast<int>(host))));
    EXPECT_EQ(without_interface.code[host], 2);
  }
}

// Each side loses all ranks of the other and reports it within one second (the test allows ten).
TEST_F(Hosts, WireCut_BothSidesNameWhomTheyLost) {
  const std::string program = job() + " -o backend.timeout=60s collective";
  std::chrono::steady_clock::time_point cut;
  std::thread cutter([&] {
    for (int rank = 0; rank < 4; ++rank) await_file(folder_ / fmt::format("pid.{}", rank));
    hosts_->cut_wire();
    cut = std::chrono::steady_clock::now();
  });
  const auto result = run_apart(program);
  cutter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - cut, std::chrono::seconds(10));
  const std::regex lost_by_first("rank [23] \\(process [0-9]+\\) cannot be reached");
  EXPECT_TRUE(std::regex_search(result.output[0], lost_by_first)) << result.output[0];
  const std::regex lost_by_second("rank 0 \\(process [0-9]+\\) cannot be reached");
  EXPECT_TRUE(std::regex_search(result.output[1], lost_by_second)) << result.output[1];
  EXPECT_EQ(result.code[0], 4);
  EXPECT_EQ(result.code[1], 4);
}

TEST_F(Hosts, StoppedOnTheOtherMachine_IsNamed) {
  const std::string program = job() + " -o backend.timeout=60s stops";
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_apart(program);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  const std::regex lost("rank 3 \\(process [0-9]+\\) is stopped");
  for (size_t host = 0; host < 2; ++host) {
    EXPECT_TRUE(std::regex_search(result.output[host], lost)) << result.output[host];
    EXPECT_EQ(result.code[host], 4);
  }
}

class HostsOfMpirun : public Hosts {
 protected:
  void SetUp() override {
    if (std::system("mpirun.openmpi --version > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "Open MPI is not installed";
    }
    Hosts::SetUp();
  }
};

TEST_F(HostsOfMpirun, RanksOfBoth_Meet) {
  const auto result = run_via_mpirun("-o backend.use=gloo_cpu -o backend.interface=wire", meet());
  for (int rank = 0; rank < 4; ++rank) {
    expect_part(result.output[0], fmt::format("rank {} of 4 met 4", rank));
  }
  EXPECT_EQ(result.code[0], 0);
}

// The launcher reports as on one machine.
TEST_F(HostsOfMpirun, RankThatFailsOnTheOtherHost_IsNamed_WithItsLastLines) {
  const std::string gloo = "-o backend.use=gloo_cpu -o backend.interface=wire";
  const auto failed =
      run_via_mpirun(gloo, write_script("fails",
                                        "[ $COUPLER_RANK = 3 ] && { echo no memory >&2; exit 7; }\n"
                                        "sleep 60"));
  EXPECT_EQ(failed.code[0], 7);
  expect_part(failed.output[0], "coupler: rank 3 exited with code 7");
  expect_part(failed.output[0], "    no memory");
  const auto stopped = run_via_mpirun(gloo, job() + " -o backend.timeout=60s stops");
  EXPECT_EQ(stopped.code[0], 4);
  const std::regex lost("coupler: rank 3 \\(process [0-9]+\\) is stopped");
  EXPECT_TRUE(std::regex_search(stopped.output[0], lost)) << stopped.output[0];
}

TEST_F(HostsOfMpirun, LauncherKilled_NothingIsLeftOnEither) {
  const auto launcher =
      write_script("launcher", via_mpirun("-o backend.use=gloo_cpu -o backend.interface=wire",
                                          job() + " -o backend.timeout=60s between"));
  const auto killer =
      write_script("killer", launcher + " &\nwhile ! [ -e " + (folder_ / "pid.3").string() +
                                 " ]; do sleep 0.05; done\nkill -9 $!\nwait");
  hosts_->run("timeout 60 " + killer, "true");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string left;
  do {
    left = hosts_->processes(0) + hosts_->processes(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (!left.empty() && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(left, "");
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    const std::string name = entry.path().filename();  // mpirun's is ompi.HOST.USER
    EXPECT_EQ(name.find(hosts_->name(0)), std::string::npos) << name << " was left behind";
  }
}

#ifdef COUPLER_DIGITS
// The same loss as on one machine.
TEST_F(Hosts, Digits_LearnAsOnOneMachine) {
  const std::string program = std::string(COUPLER_DIGITS) + " --epochs 2 --batch-size 32";
  const auto loss = [](const std::string& text) {
    std::smatch match;
    return std::regex_search(text, match, std::regex("final loss: ([0-9.e-]+)"))
               ? std::stod(match[1])
               : -1.0;
  };
  const auto alone = hosts_->run(program, "true");
  EXPECT_GT(loss(alone.output[0]), 0) << alone.output[0];
  const auto result = run(program);
  EXPECT_EQ(result.code[0], 0) << result.output[0];
  EXPECT_EQ(result.code[1], 0) << result.output[1];
  EXPECT_NEAR(loss(result.output[0]), loss(alone.output[0]), 1e-6 * loss(alone.output[0]));
#ifdef COUPLER_OVER_MPI
  const auto over_mpi = run_via_mpirun("-o backend.use=mpi", program);
  EXPECT_EQ(over_mpi.code[0], 0) << over_mpi.output[0];
  EXPECT_NEAR(loss(over_mpi.output[0]), loss(alone.output[0]), 1e-6 * loss(alone.output[0]));
#endif
}
#endif

}  // namespace
}  // namespace coupler
