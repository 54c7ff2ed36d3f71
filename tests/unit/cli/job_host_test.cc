// What the launcher offers its ranks: the store's address and the content of the job file.
#include "cli/launch/job_host.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/rank_exit.h"

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

// Joins as a rank does, by the job file, and sets the keys that the launcher observes.
void expect_joined(const rendezvous::JobAddress& job) {
  store::StoreClient rank(job.host, job.port, job.secret, 20s, job.tls);
  rank.set("key", "value");
  EXPECT_EQ(rank.get("key", 20s), "value");
}

TEST(JobHost, Store_IsOnAUnixSocketOfTheLaunchers) {
  const JobHost host({.processes = 2});
  const rendezvous::JobAddress job = rendezvous::read_job_file(host.job_file());
  EXPECT_EQ(job.host.find("/proc/" + std::to_string(::getpid()) + "/fd/"), 0U) << job.host;
  EXPECT_EQ(job.port, 0);
  EXPECT_FALSE(job.tls);
  expect_joined(job);
}

TEST(JobHost, Tls_IsInTheJobFile_AndSpoken) {
  JobHost host({.processes = 2, .tls = true});
  const rendezvous::JobAddress job = rendezvous::read_job_file(host.job_file());
  EXPECT_TRUE(job.tls);
  expect_joined(job);
  host.tell_shims(0);  // the launcher's own client speaks TLS too
}

// As the launcher waits: an event that arrives while earlier ones are handled must not stay
// unnoticed until the next one.
TEST(JobHost, WakesForEverythingThatIsSaid) {
  constexpr int kRanks = 4, kRounds = 200;
  JobHost host({.processes = kRanks});
  const rendezvous::JobAddress job = rendezvous::read_job_file(host.job_file());
  std::vector<std::unique_ptr<store::StoreClient>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(
        std::make_unique<store::StoreClient>(job.host, job.port, job.secret, 20s, job.tls));
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { ranks[rank]->set(exit_key(rank), encode(RankExit())); });
    }
    int taken = 0;
    bool woken = true;
    while (taken < kRanks && woken) {
      pollfd wake{.fd = host.wake_fd(), .events = POLLIN, .revents = 0};
      woken = ::poll(&wake, 1, 10'000) == 1;
      taken += static_cast<int>(host.take_events().reports.size());
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(woken) << "in round " << round;
  }
}

}  // namespace
}  // namespace coupler::cli
