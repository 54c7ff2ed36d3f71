// Jobs of gloo_cpu on two machines with an attacker on the path between them, who can manipulate
// any TCP segment. With protect = "mac" or "tls" no result is ever wrong; without, the attacker can
// make a result wrong unnoticed.
#include "path.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "attacked_job.h"
#include "network.h"

namespace backend_test {
namespace {

class OnThePath : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Network::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    first_.emplace();
    between_.emplace();
    second_.emplace();
    Network::join({*first_, "wire", "10.77.0.1/24"}, {*between_, "left", ""});
    Network::join({*second_, "wire", "10.77.0.2/24"}, {*between_, "right", ""});
  }

  struct Attack {
    const char* protect = "none";
    Plan plan;
    bool at_once = false;  // the attacker does not wait until the ranks are connected
    int32_t ranks = 2;
    int64_t connect_ns = 20'000'000'000;  // the ranks' timeout for connecting
  };
  Verdict run(const Attack& attack) {
    const Path path(*between_, attack.plan, attack.at_once);
    Job job = placed_job(attack.ranks, {&*first_, &*second_}, "wire");
    job.timeout_ns = attack.connect_ns;
    db_option option{};
    option.struct_size = sizeof option;
    option.key = "protect";
    option.type = DB_OPTION_STRING;
    option.string = attack.protect;
    job.options = {&option};
    Work work;
    work.counts.assign(12, 1 << 16);
    work.splits = false;
    work.timeout_ns = 1'500'000'000;
    work.armed_after = 1;
    work.armed = path.armed();
    const Verdict verdict = run_attacked(job, work);
    tampered_ = path.tampered();
    EXPECT_GT(path.frames(), 0);
    return verdict;
  }

  std::optional<Network> first_, between_, second_;
  bool tampered_ = false;
};

TEST_F(OnThePath, NobodyTampers_EveryResultIsExact) {
  for (const char* protect : {"none", "mac", "tls"}) {
    const Verdict verdict = run({.protect = protect});
    EXPECT_EQ(verdict.well, 1) << protect << ": " << verdict.describe();
  }
}

// The reason for protect; also proves that the attacks of the following tests work.
TEST_F(OnThePath, TamperedBytesWithoutProtection_ResultIsWrong) {
  for (const Tampering what :
       {Tampering::kAlter, Tampering::kReplace, Tampering::kReflect, Tampering::kSwap}) {
    // Hits the middle of a message. If it hits the next header instead, the job ends with an error,
    // and the test tries again.
    Verdict verdict;
    for (int i = 0; i < 5 && verdict.wrong == 0; ++i) {
      verdict.add(run({.plan = {.what = what, .skip = 40}}));
      EXPECT_TRUE(tampered_) << static_cast<int>(what);
    }
    EXPECT_EQ(verdict.wrong, 1) << static_cast<int>(what) << ": " << verdict.describe();
  }
}

TEST_F(OnThePath, CrossedConnectionsWithoutProtection_ResultIsWrong) {
  // Four ranks through one forwarder: on a busy machine one may be late, which is an error.
  Verdict verdict;
  for (int i = 0; i < 5 && verdict.wrong == 0; ++i) {
    verdict.add(run({.plan = {.what = Tampering::kCross}, .at_once = true, .ranks = 4}));
    EXPECT_TRUE(tampered_);
  }
  EXPECT_EQ(verdict.wrong, 1) << verdict.describe();
}

class Protected : public OnThePath, public ::testing::WithParamInterface<const char*> {};

TEST_P(Protected, TamperedBytes_JobEndsWithAnError) {
  for (const Tampering what :
       {Tampering::kAlter, Tampering::kReplace, Tampering::kReflect, Tampering::kDrop,
        Tampering::kRepeat, Tampering::kSwap, Tampering::kCut}) {
    const Verdict verdict = run({.protect = GetParam(), .plan = {.what = what}});
    EXPECT_TRUE(tampered_) << static_cast<int>(what);
    EXPECT_EQ(verdict.ended, 1) << static_cast<int>(what) << ": " << verdict.describe();
  }
}

// Every message of the greeting and the first ones after it; in a campaign, at many places of each.
TEST_P(Protected, TamperedGreeting_NoResultIsWrong) {
  const bool many = std::getenv("COUPLER_CAMPAIGN_STARTS") != nullptr;
  for (int64_t skip = 0; skip < 10; ++skip) {
    for (size_t place = 0; place < (many ? 20 : 1); ++place) {
      const size_t at = many ? 50 * place : static_cast<size_t>(skip) * 331 % 1000;
      const Verdict verdict =
          run({.protect = GetParam(),
               .plan = {.what = Tampering::kAlter, .least_bytes = 1, .skip = skip, .at = at},
               .at_once = true,
               .connect_ns = 1'500'000'000});
      EXPECT_TRUE(tampered_) << skip;
      EXPECT_EQ(verdict.wrong, 0) << skip << ", " << at << ": " << verdict.describe();
    }
  }
}

// The ranks notice it while they connect, and connect again.
TEST_P(Protected, CrossedConnections_NoResultIsWrong) {
  const Verdict verdict = run(
      {.protect = GetParam(), .plan = {.what = Tampering::kCross}, .at_once = true, .ranks = 4});
  EXPECT_TRUE(tampered_);
  EXPECT_EQ(verdict.wrong, 0) << verdict.describe();
}

INSTANTIATE_TEST_SUITE_P(OnThePath, Protected, ::testing::Values("mac", "tls"),
                         [](const auto& given) { return std::string(given.param); });

}  // namespace
}  // namespace backend_test
