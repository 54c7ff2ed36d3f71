// Jobs of gloo_cpu on machines where another, unprivileged user attacks every socket that is
// visible to it, as fast as possible: every job connects, and every result is exact.
//
// COUPLER_CAMPAIGN_STARTS=500 starts that many jobs of each size in each test.
#include "stranger.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attacked_job.h"
#include "network.h"

namespace backend_test {
namespace {

int64_t campaign() {
  const char* text = std::getenv("COUPLER_CAMPAIGN_STARTS");
  return text == nullptr ? 0 : std::atoll(text);
}

// Each deed alone; then all but kCrowd, which slows down the others; then all.
std::vector<unsigned> attacks() {
  std::vector<unsigned> result;
  for (size_t i = 0; i < kDeeds; ++i) result.push_back(bit(static_cast<Deed>(i)));
  result.push_back(kAllDeeds & ~bit(Deed::kCrowd));
  result.push_back(kAllDeeds);
  return result;
}

class StrangerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Network::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    if (const std::string reason = Strangers::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  }

  // One start; one rank comes late, and the others wait for it with open listeners.
  static Verdict start(const std::vector<const Network*>& machines, int32_t size, int64_t number) {
    Job job = placed_job(size, machines, "wire");
    job.timeout_ns = 30'000'000'000;
    job.places[static_cast<size_t>(number % size)].late_ms = static_cast<int32_t>(number % 4) * 20;
    return run_attacked(job, {});
  }

  // Starts jobs of each size under every attack in turn. proof: the counts that show that each deed
  // was done.
  static void check(const std::vector<const Network*>& machines, Strangers& strangers,
                    std::array<Tally::Count, kDeeds> Tally::*proof) {
    const std::vector<unsigned> all = attacks();
    int64_t number = 0;
    for (const int32_t size : {2, 4, 8}) {
      const int64_t starts = campaign() > 0 ? campaign() : size == 8 ? 3 : 6;
      Verdict verdict;
      for (int64_t i = 0; i < starts; ++i, ++number) {
        strangers.set_deeds(all[static_cast<size_t>(number) % all.size()]);
        verdict.add(start(machines, size, number));
      }
      std::printf("%d ranks on %zu machine(s), %s\n", size, machines.size(),
                  verdict.describe().c_str());
      EXPECT_EQ(verdict.well, starts) << "with " << size << " ranks";
      EXPECT_EQ(verdict.wrong, 0) << "with " << size << " ranks";
    }
    // On a busy machine the stranger may have been too late for a deed.
    for (size_t i = 0; i < kDeeds; ++i) {
      const auto deed = static_cast<Deed>(i);
      strangers.set_deeds(bit(deed));
      for (int more = 0; more < 50 && strangers.count(proof, deed) == 0; ++more, ++number) {
        const Verdict verdict = start(machines, 2, number);
        EXPECT_EQ(verdict.well, 1) << verdict.describe();
      }
      EXPECT_GT(strangers.count(proof, deed), 0) << kDeedNames[i];
    }
    std::printf("%s\n", strangers.describe().c_str());
  }
};

// On one machine the kernel rejects other users' connections: the stranger can only try.
TEST_F(StrangerTest, OnOneMachine_EveryStartEndsWell) {
  const Network machine;
  Strangers strangers({&machine});
  check({&machine}, strangers, &Tally::tried);
  EXPECT_EQ(strangers.count(&Tally::local) + strangers.count(&Tally::tcp), 0);
}

TEST_F(StrangerTest, SeveralOnOneMachine_EveryStartEndsWell) {
  const Network machine;
  Strangers strangers({&machine, &machine, &machine});
  check({&machine}, strangers, &Tally::tried);
  EXPECT_EQ(strangers.count(&Tally::local) + strangers.count(&Tally::tcp), 0);
}

// On two machines the ranks meet over TCP. Sometimes a stranger connects to an address that the
// other stranger has just taken: these connections do not count.
TEST_F(StrangerTest, OnTwoMachines_EveryStartEndsWell) {
  const Network first, second;
  Network::join({first, "wire", "10.77.0.1/24"}, {second, "wire", "10.77.0.2/24"});
  Strangers strangers({&first, &second});
  check({&first, &second}, strangers, &Tally::made);
  EXPECT_GT(strangers.count(&Tally::tcp), strangers.count(&Tally::visitors));
}

}  // namespace
}  // namespace backend_test
