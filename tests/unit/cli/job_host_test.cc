// What the launcher offers its ranks: where the store listens and what the job file says.
#include "job_host.h"

#include <gtest/gtest.h>

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

// Joins as a rank would, by the job file, and sets what the launcher must hear of.
void expect_joined(const JobAddress& job) {
  StoreClient rank(job.host, job.port, job.secret, 20s, job.tls);
  rank.set("key", "value");
  EXPECT_EQ(rank.get("key", 20s), "value");
}

TEST(JobHost, Store_IsOnLoopback) {
  const JobHost host({.processes = 2});
  const JobAddress job = read_job_file(host.job_file());
  EXPECT_EQ(job.host, "127.0.0.1");
  EXPECT_FALSE(job.tls);
  expect_joined(job);
}

TEST(JobHost, Tls_IsInTheJobFile_AndSpoken) {
  JobHost host({.processes = 2, .tls = true});
  const JobAddress job = read_job_file(host.job_file());
  EXPECT_TRUE(job.tls);
  expect_joined(job);
  host.tell_shims({.signal = 0});  // the launcher's own client speaks it too
}

}  // namespace
}  // namespace coupler::cli
