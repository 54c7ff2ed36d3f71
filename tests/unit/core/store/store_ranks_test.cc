// get_ranks: every rank's value in one request, also by a thousand ranks at once.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "simulated_ranks.h"
#include "store/client.h"
#include "store/server.h"
#include "store/store.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;
using Values = std::vector<std::optional<std::string>>;

class StoreRanksTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreClient> join() const {
    return std::make_unique<StoreClient>("127.0.0.1", server_.port(), secret_, 20s);
  }
  const Bytes32 secret_ = random_bytes32();
  const StoreServer server_{secret_};
};

TEST_F(StoreRanksTest, AllSet_AreGivenInOrder) {
  const auto store = join();
  for (const int rank : {2, 0, 1, 3}) {
    store->set("a/" + std::to_string(rank), std::string(static_cast<size_t>(rank), 'x'));
  }
  store->set("a/01", "no rank's");
  store->set("a/x", "no rank's");
  EXPECT_EQ(store->get_ranks("a", 3, 20s), (Values{"", "x", "xx"}));
  EXPECT_EQ(store->get_ranks("a", 4, 0s), (Values{"", "x", "xx", "xxx"}));
  EXPECT_EQ(store->get_ranks("a", 0, 0s), Values{});
  store->set("a/1", "new");
  EXPECT_EQ(store->get_ranks("a", 3, 20s), (Values{"", "new", "xx"}));
}

TEST_F(StoreRanksTest, SomeMissing_AreNamedAtTheDeadline) {
  const auto store = join();
  store->set("a/1", "one");
  EXPECT_EQ(store->get_ranks("a", 3, 0s), (Values{std::nullopt, "one", std::nullopt}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(store->get_ranks("a", 3, 50ms), (Values{std::nullopt, "one", std::nullopt}));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  // The canceled wait affects no one else.
  store->set("a/0", "zero");
  store->set("a/2", "two");
  EXPECT_EQ(store->get_ranks("a", 3, 20s), (Values{"zero", "one", "two"}));
}

TEST_F(StoreRanksTest, WaitsOfDifferentCounts_EndEachWithItsOwnLast) {
  std::vector<std::thread> waiting;
  for (const int count : {1, 2, 3, 3}) {
    waiting.emplace_back([&, count] {
      const auto values = join()->get_ranks("p/q", count, 20s);
      EXPECT_EQ(values.size(), static_cast<size_t>(count));
      EXPECT_EQ(values.back(), std::to_string(count - 1));
    });
  }
  const auto store = Store::with_prefix(join(), "p");
  for (int rank = 0; rank < 3; ++rank) {
    std::this_thread::sleep_for(10ms);
    store->set("q/" + std::to_string(rank), std::to_string(rank));
  }
  for (auto& thread : waiting) {
    thread.join();
  }
  EXPECT_EQ(store->get_ranks("q", 3, 0s), (Values{"0", "1", "2"}));
}

TEST_F(StoreRanksTest, MoreThanAFrameHolds_ComesInSeveral) {
  const auto store = join();
  Values expected;
  for (int rank = 0; rank < 5; ++rank) {
    expected.emplace_back(std::string(3u << 20, static_cast<char>('a' + rank)));
    store->set("big/" + std::to_string(rank), *expected.back());
  }
  EXPECT_EQ(store->get_ranks("big", 5, 20s), expected);
  expected.emplace_back();
  EXPECT_EQ(store->get_ranks("big", 6, 0s), expected);
}

TEST_F(StoreRanksTest, AbsurdCounts_AreRefused_AndServedOn) {
  const auto store = join();
  EXPECT_THROW(store->get_ranks("a", 1 << 30, 1s), Error);
  store->set("a/0", "x");
  EXPECT_EQ(store->get_ranks("a", 1, 0s), Values{"x"});
}

TEST_F(StoreRanksTest, ClientThatLeavesWhileItWaits_IsForgotten) {
  {
    const auto leaving = join();
    std::thread waiting([&] { EXPECT_EQ(leaving->get_ranks("a", 2, 20ms).size(), 2U); });
    waiting.join();
  }
  const auto store = join();
  store->set("a/0", "x");
  store->set("a/1", "y");
  EXPECT_EQ(store->get_ranks("a", 2, 20s), (Values{"x", "y"}));
}

TEST(MemoryStore, RanksValues_AreGivenToo) {
  const auto store = Store::with_prefix(std::make_shared<MemoryStore>(), "p");
  store->set("a/0", "x");
  EXPECT_EQ(store->get_ranks("a", 2, 10ms), (Values{"x", std::nullopt}));
}

// Both ends of every connection are in this process.
int ranks_that_fit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur > 2200 ? 1000 : static_cast<int>((limit.rlim_cur - 200) / 2);
}

TEST(SimulatedRanks, AThousand_MeetAndLearnAllOfAll) {
  using Kind = RendezvousPlan::Kind;
  const Bytes32 secret = random_bytes32();
  RendezvousPlan plan{.ranks = ranks_that_fit(), .threads = 2};
  const StoreServer server(secret, {.members = static_cast<size_t>(plan.ranks)});
  for (const auto kind : {Kind::kAll, Kind::kVerdict, Kind::kOneByOne}) {
    plan.kind = kind;
    plan.name += "+";
    const auto result = meet(server.host(), server.port(), secret, plan);
    EXPECT_EQ(result.problem, "");
    EXPECT_EQ(result.met, plan.ranks);
  }
  StoreClient reader(server.host(), server.port(), secret, 20s);
  const auto values = reader.get_ranks("meet+", plan.ranks, 20s);
  ASSERT_EQ(values.size(), static_cast<size_t>(plan.ranks));
  for (int rank = 0; rank < plan.ranks; ++rank) {
    EXPECT_EQ(values[static_cast<size_t>(rank)], value_of_rank(rank, plan.value_bytes));
  }
}

}  // namespace
}  // namespace coupler::store
