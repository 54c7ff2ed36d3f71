// Operations, errors and how they reach all ranks, on the test double.
#include "comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>

#include "ranks.h"

namespace coupler::comm {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder

TEST(Communicator_SingleProcess_RunsWithoutPluginAndStore, AllReduceKeepsTheValues) {
  config::BackendConfig backend;
  const auto communicator = Communicator::create(
      {.plugin = plugin::Plugin::single(), .process = {}, .store = nullptr, .backend = &backend});
  std::vector<float> values = {1, 2, 3};
  communicator->run(all_reduce(values));
  communicator->submit(all_reduce(values)).wait();
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(communicator->size(), 1);
}

TEST(Communicator, MadeUpRanks_AnswerAtOnceAndTouchNoMemory) {
  const auto communicator = Communicator::made_up("others", 4);
  EXPECT_EQ(communicator->size(), 4);
  EXPECT_EQ(communicator->rank(), 0);
  EXPECT_EQ(communicator->world_ranks(), (std::vector<int>{0, 1, 2, 3}));
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.count = uint64_t{1} << 40;  // of memory that is not there
  communicator->run(op);
  op.kind = DB_RECV;
  op.root_or_peer = 3;
  Work work = communicator->submit(op);
  EXPECT_TRUE(work.done());
  work.wait();
  communicator->verify({{"a setting", "of this rank"}});
}

TEST(Communicator, PeerMemory_IsZerosThatOutliveIt_OrNull) {
  std::shared_ptr<void> kept;
  expect_no_error(run_ranks(1, [&](Communicator& c) {
    kept = c.peer_memory(1000);
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(c.peer_memory(2 << 20), nullptr) << "the double has less";
  }));
  auto* const bytes = static_cast<char*>(kept.get());
  EXPECT_EQ(std::count(bytes, bytes + 1000, 0), 1000);
  bytes[999] = 1;
  expect_no_error(run_ranks(2, [](Communicator& c) {
    c.abort();
    EXPECT_EQ(c.peer_memory(1000), nullptr) << "of a dead communicator";
  }));
  const auto alone = Communicator::made_up("others", 2);
  EXPECT_EQ(alone->peer_memory(1000), nullptr) << "a backend without the extension";
}

TEST(Communicator, RunAndSubmit_FourRanks_SumIsEverywhere) {
  expect_no_error(run_ranks(4, [](Communicator& c) {
    for (int step = 0; step < 1000; ++step) {
      std::vector<float> blocking(7, 1.0f), asynchronous(3, 2.0f);
      Work work = c.submit(all_reduce(asynchronous));
      c.run(all_reduce(blocking));
      work.wait();
      ASSERT_EQ(blocking, std::vector<float>(7, 4.0f));
      ASSERT_EQ(asynchronous, std::vector<float>(3, 8.0f));
    }
  }));
}

TEST(Communicator, Work_NeverWaitedFor_IsCompleteAfterItsDestructor) {
  expect_no_error(run_ranks(2, [](Communicator& c) {
    std::vector<float> values(5, 1.0f);
    { const Work work = c.submit(all_reduce(values)); }
    EXPECT_EQ(values, std::vector<float>(5, 2.0f));
  }));
}

TEST(Communicator, Work_OutlivesTheCommunicator_IsStillWaitedFor) {
  auto store = std::make_shared<store::MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const RankSetup setup = setup_of(rank, 2, store);
      auto communicator = Communicator::create(options_of(setup));
      std::vector<float> values(5, 1.0f);
      Work work = communicator->submit(all_reduce(values));
      communicator.reset();
      work.wait();
      EXPECT_EQ(values, std::vector<float>(5, 2.0f));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Communicator, ManyThreadsOnOneCommunicator_OrderDoesNotMatter_AllComplete) {
  expect_no_error(run_ranks(2, [](Communicator& c) {
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int step = 0; step < 200; ++step) {
          std::vector<float> values(3, 1.0f);
          if (step % 2 == 0) {
            c.run(all_reduce(values));
          } else {
            c.submit(all_reduce(values)).wait();
          }
          right += values == std::vector<float>(3, 2.0f) ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, 800);
  }));
}

TEST(Communicator, Split_ByParity_GroupsWorkApartAndNegativeColorGetsNone) {
  expect_no_error(run_ranks(4, [](Communicator& c) {
    const int color = c.rank() == 3 ? -1 : c.rank() % 2;
    const auto part = c.split(color, 0, "parity");
    if (c.rank() == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->name(), "world/parity");
    EXPECT_EQ(part->size(), c.rank() == 1 ? 1 : 2);
    std::vector<float> values(3, static_cast<float>(c.rank()));
    part->run(all_reduce(values));
    EXPECT_EQ(values, std::vector<float>(3, c.rank() == 1 ? 1.0f : 2.0f));
  }));
}

TEST(Communicator, UnsupportedOperation_OnEveryRank_IsRefusedAndTheNextOneWorks) {
  expect_no_error(run_ranks(2, [](Communicator& c) {
    for (int step = 0; step < 300; ++step) {
      std::vector<float> values(3, 1.0f);
      db_op op = all_reduce(values);
      op.reduce = DB_MAX;
      EXPECT_FALSE(c.supports(op));
      try {
        c.run(op);
        FAIL() << "the operation was accepted";
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      }
      c.run(all_reduce(values));
    }
  }));
}

TEST(Communicator, WrongArguments_RootOutsideOfTheWorld_IsInvalidArgument) {
  expect_no_error(run_ranks(2, [](Communicator& c) {
    std::vector<float> values(3, 1.0f);
    db_op op = all_reduce(values);
    op.kind = DB_BROADCAST;
    op.root_or_peer = 2;
    EXPECT_THROW(c.run(op), Error);
    op.kind = 77;
    EXPECT_THROW(c.run(op), Error);
    op.kind = DB_ALL_TO_ALL_V;
    EXPECT_THROW(c.run(op), Error);
    c.run(barrier());
  }));
}

TEST(Communicator, Abort_WhilePeersWait_EveryRankEndsInAborted) {
  const auto errors = run_ranks(3, [](Communicator& c) {
    if (c.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      c.abort();
    }
    c.run(barrier());
  });
  expect_errors(errors, ErrorCode::kAborted, {"rank 0 called abort"});
}

TEST(Communicator, Wrapper_OverABaseOfTheConfiguration_WorksThroughIt) {
  const auto with_base = [](const std::string& base) {
    return [base](RankSetup& setup) {
      setup.backend.options["double_wrapper"].push_back(
          {.key = "base", .value = double_path(base), .source = {}});
    };
  };
  expect_no_error(run_ranks(
      2,
      [](Communicator& c) {
        std::vector<float> values(3, 1.0f);
        c.run(all_reduce(values));
        EXPECT_EQ(values, std::vector<float>(3, 2.0f));
      },
      with_base("double"), "double_wrapper"));
  expect_errors(run_ranks(
                    2, [](Communicator&) {}, with_base("double_wrapper"), "double_wrapper"),
                ErrorCode::kConfig, {"backend.double_wrapper.base", "needs a base itself"});
}

}  // namespace
}  // namespace coupler::comm
