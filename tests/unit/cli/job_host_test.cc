// What the launcher offers its ranks: where the store listens and what the job file says.
#include "job_host.h"

#include <coupler/error.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "rendezvous/network_interface.h"

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

std::string refusal(const JobHostOptions& options) {
  try {
    const JobHost host(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Joins as a rank would, by the job file, and sets what the launcher must hear of.
void expect_joined(const JobHost& host) {
  const JobAddress job = read_job_file(host.job_file());
  StoreClient rank(job.host, job.port, job.secret, 20s, job.tls);
  rank.set("key", "value");
  EXPECT_EQ(rank.get("key", 20s), "value");
}

TEST(JobHost, OneMachine_IsLoopback_WhateverIsConfigured) {
  const JobHost host({.processes = 2, .interface_name = "eth-none", .all_interfaces = true});
  EXPECT_EQ(host.address().host, "127.0.0.1");
  EXPECT_FALSE(host.address().tls);
  expect_joined(host);
}

TEST(JobHost, SeveralMachines_UseTheNamedInterface) {
  const JobHost host({.processes = 2, .several_machines = true, .interface_name = "lo"});
  EXPECT_EQ(host.address().host, "127.0.0.1");
  expect_joined(host);
}

TEST(JobHost, SeveralMachinesWithoutInterface_AreRefused_WithTheFix) {
  const auto text = refusal({.processes = 2, .several_machines = true});
  EXPECT_NE(text.find("backend.interface"), std::string::npos) << text;
  EXPECT_NE(text.find("launch.all_interfaces"), std::string::npos) << text;
}

TEST(JobHost, InterfaceThatIsNotThere_IsRefused_ListingThoseThatAre) {
  for (const char* name : {"eth-none", "192.0.2.7"}) {
    const auto text = refusal({.processes = 2, .several_machines = true, .interface_name = name});
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find("lo (127.0.0.1)"), std::string::npos) << text;
  }
}

TEST(JobHost, AllInterfaces_AreReachedByTheMachinesName) {
  testing::internal::CaptureStderr();
  const JobHost host({.processes = 2, .several_machines = true, .all_interfaces = true});
  const auto log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("all interfaces"), std::string::npos) << log;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  EXPECT_EQ(host.address().host, name);
  StoreClient("127.0.0.1", host.address().port, host.address().secret, 20s).set("key", "value");
}

TEST(JobHost, Tls_IsInTheJobFile_AndSpoken) {
  Config config;
  config.launch.tls = true;
  JobHost host(job_host_options(config, 2, false));
  EXPECT_TRUE(host.address().tls);
  expect_joined(host);
  host.tell_shims({.signal = 0});  // the launcher's own client speaks it too
}

}  // namespace
}  // namespace coupler::cli
