// The store of ranks on several machines, here on one: loopback stands for the network.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <future>

#include "rendezvous/host_store.h"
#include "store/server.h"
#include "store/store.h"

namespace coupler::rendezvous {
namespace {

using namespace std::chrono_literals;

class NetworkStore : public ::testing::Test {
 protected:
  NetworkStore() {
    std::string name = ::testing::TempDir() + "coupler-network-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    config_ = config::load_config({});
    config_.backend.timeout = 20s;
    config_.backend.interface = "lo";
    config_.launch.secret_file = write("secret", std::string(32, 's'), 0600);
  }
  ~NetworkStore() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  // One of two ranks, each on its own machine.
  static ProcessInfo rank(int number, int port, const std::string& host = "127.0.0.1") {
    ProcessInfo process;
    process.launcher = LauncherKind::kTorchrun;
    process.rank = number;
    process.world_size = 2;
    process.local_world_size = 1;
    process.store_host = host;
    process.store_port = port;
    return process;
  }

  static int free_port() { return store::StoreServer(Bytes32{}).port(); }

  std::string refusal(const ProcessInfo& process) const {
    try {
      host_or_join_network_store(process, config_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  std::filesystem::path folder_;
  config::Config config_;
};

TEST_F(NetworkStore, RanksMeet_WhoeverIsFirst) {
  for (const bool tls : {false, true}) {
    config_.launch.tls = tls;
    const int port = free_port();
    auto one = std::async(std::launch::async,
                          [&] { return host_or_join_network_store(rank(1, port), config_); });
    std::this_thread::sleep_for(50ms);  // rank 1 finds no store at first
    const auto zero = host_or_join_network_store(rank(0, port), config_);
    zero->set("key", "value");
    EXPECT_EQ(one.get()->get("key", 20s), "value") << tls;
  }
}

TEST_F(NetworkStore, NoInterfaceNamed_ListensAtMasterAddressOnly) {
  config_.backend.interface = "";
  config_.backend.use = "mpi";  // its processes reach each other by themselves
  config_.backend.plugin_path = {COUPLER_FIXTURES};
  const int port = free_port();
  const auto zero = host_or_join_network_store(rank(0, port, "localhost"), config_);
  EXPECT_NO_THROW(host_or_join_network_store(rank(1, port), config_));
  expect_part(refusal(rank(0, port, "192.0.2.1")),
              "MASTER_ADDR=192.0.2.1 is not an address of rank 0's machine, which has ");
}

TEST_F(NetworkStore, AnotherSecret_IsRefused) {
  const int port = free_port();
  const auto zero = host_or_join_network_store(rank(0, port), config_);
  config_.launch.secret_file = write("other", std::string(32, 't'), 0600);
  expect_part(refusal(rank(1, port)), "the secret belongs to another job");
}

TEST_F(NetworkStore, RankZeroNeverComes_TimeoutNamesThePlace) {
  config_.backend.timeout = 100ms;
  const int port = free_port();
  expect_part(refusal(rank(1, port)), "127.0.0.1:" + std::to_string(port));
}

// Processes of an earlier start cannot join.
TEST_F(NetworkStore, RankOfAnotherStart_IsRefused) {
  const int port = free_port();
  ::setenv("COUPLER_RESTART_COUNT", "1", 1);
  const auto zero = host_or_join_network_store(rank(0, port), config_);
  EXPECT_NO_THROW(host_or_join_network_store(rank(1, port), config_));
  ::unsetenv("COUPLER_RESTART_COUNT");
  expect_part(refusal(rank(1, port)), "the secret belongs to another job");
}

TEST_F(NetworkStore, ThroughAnAgentsStore_RanksMeet_WithTheFileOrWithout) {
  for (const bool with_file : {true, false}) {
    if (!with_file) config_.launch.secret_file = "";
    store::MemoryStore agent;
    auto one = std::async(std::launch::async,
                          [&] { return host_or_join_through(agent, rank(1, 1), config_); });
    const auto zero = host_or_join_through(agent, rank(0, 1), config_);
    zero->set("key", "value");
    const auto other = one.get();
    EXPECT_EQ(other->get("key", 20s), "value") << with_file;
    EXPECT_NE(other->peers(), nullptr) << "they should monitor each other";
    const auto said = agent.get("coupler/store", 0s);
    EXPECT_EQ(said->find(std::string(64, '0')) != std::string::npos, with_file)
        << "with a secret file, the agent must not hold the secret";
  }
}

TEST_F(NetworkStore, ThroughAnAgentsStore_RankZeroNeverComes_IsNamed) {
  config_.backend.timeout = 100ms;
  store::MemoryStore agent;
  try {
    host_or_join_through(agent, rank(1, 1), config_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.detail().rank, 0);
    expect_part(error.what(),
                "rank 0 did not publish the address of the job's store in torchrun's store");
  }
}

TEST_F(NetworkStore, PortInUse_IsNamed) {
  const store::StoreServer other(Bytes32{});
  expect_part(refusal(rank(0, other.port())), "another program uses this port");
}

TEST_F(NetworkStore, WhatIsMissing_IsNamedWithTheFix) {
  expect_part(refusal(rank(0, 1, "")),
              "1 of 2 ranks run on this machine, but MASTER_ADDR and "
              "MASTER_PORT, where they meet, are not set");
  config_.backend.interface = "";
  expect_part(refusal(rank(0, 1)), "but backend.interface, through which they reach each other");
  expect_part(refusal(rank(0, 1)), "lo (127.0.0.1)");
  config_.backend.interface = "lo";
  config_.launch.secret_file = "";
  expect_part(refusal(rank(1, 1)), "but launch.secret_file, which lets them trust each other");
  expect_part(refusal(rank(1, 1)), "head -c 32 /dev/urandom");
}

TEST_F(NetworkStore, SecretFile_MustBePrivateAndLongEnough) {
  config_.launch.secret_file = write("open", std::string(32, 's'), 0644);
  expect_part(refusal(rank(0, 1)), "open can be read by others (mode 0644)");
  expect_part(refusal(rank(0, 1)), "chmod 600");
  config_.launch.secret_file = write("short", "password", 0600);
  expect_part(refusal(rank(0, 1)), "short holds 8 bytes, but a secret needs at least 32");
  config_.launch.secret_file = folder_ / "none";
  expect_part(refusal(rank(0, 1)), "none cannot be opened: No such file");
  config_.launch.secret_file = folder_;
  expect_part(refusal(rank(0, 1)), "is not a regular file");
}

TEST_F(NetworkStore, HostThatNobodyKnows_IsNamed) {
  config_.backend.interface = "";
  config_.backend.use = "mpi";
  config_.backend.plugin_path = {COUPLER_FIXTURES};
  expect_part(refusal(rank(0, 1, "no-such-host.invalid")),
              "MASTER_ADDR=no-such-host.invalid cannot be resolved on this machine");
}

}  // namespace
}  // namespace coupler::rendezvous
