// Ranks that call different operations: an error on every rank that names both, never a hang.
#include <functional>

#include "coupler/error.h"
#include "ranks.h"

namespace coupler::comm {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder

// Hides the flight recorder from the ranks, as if they were on several machines: no rank can open
// it.
class FarStore : public store::Store {
 public:
  explicit FarStore(std::shared_ptr<store::Store> parent) : parent_(std::move(parent)) {}
  void set(const std::string& key, const std::string& value) override {
    parent_->set(key, key.ends_with("board/offer") ? "other-machine /proc/1/fd/1 00" : value);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::nanoseconds timeout) override {
    return parent_->get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t delta) override { return parent_->add(key, delta); }

 private:
  std::shared_ptr<store::Store> parent_;
};

void far_apart(RankSetup& setup) { setup.store = std::make_shared<FarStore>(setup.store); }

// Two matching steps, then a third, which `change` modifies on rank 1; three ranks.
std::vector<std::optional<Error>> third_differs(const std::function<void(db_op&)>& change,
                                                const SetupFunction& setup = {}) {
  return run_ranks(
      3,
      [&](Communicator& c) {
        std::vector<float> values(64, 1.0f);
        c.run(all_reduce(values));
        c.run(barrier());
        db_op op = all_reduce(values);
        op.count = 16;
        if (c.rank() == 1) change(op);
        c.run(op);
      },
      setup);
}

TEST(Mismatch, OtherDtypeOfEqualSize_NamesBothRanksAndTheNumber) {
  expect_errors(third_differs([](db_op& op) { op.dtype = DB_I64, op.count = 8; }),
                ErrorCode::kMismatch,
                {"operation 3", "rank 1", "all_reduce i64 x8 sum", "all_reduce f32 x16 sum"});
}

TEST(Mismatch, OtherCount_NamesBothCounts) {
  expect_errors(third_differs([](db_op& op) { op.count = 17; }), ErrorCode::kMismatch,
                {"rank 1", "x17", "x16"});
}

TEST(Mismatch, OtherKind_NamesBothKinds) {
  expect_errors(third_differs([](db_op& op) { op.kind = DB_BARRIER; }), ErrorCode::kMismatch,
                {"rank 1", "barrier", "all_reduce f32 x16 sum"});
}

TEST(Mismatch, OtherReduction_NamesBoth) {
  expect_errors(third_differs([](db_op& op) { op.reduce = DB_MIN; }), ErrorCode::kMismatch,
                {"rank 1", "min", "sum"});
}

TEST(Mismatch, OtherKindWithoutASharedBoard_IsFoundThroughTheStore) {
  expect_errors(third_differs([](db_op& op) { op.kind = DB_BROADCAST; }, far_apart),
                ErrorCode::kMismatch, {"operation 3", "rank 1", "broadcast f32 x16 from rank 0"});
}

TEST(Mismatch, AllToAllVCounts_NamesWhoSendsWhatToWhom) {
  const auto errors = run_ranks(2, [](Communicator& c) {
    std::vector<float> send(8), recv(8);
    const uint64_t sends[2] = {1, c.rank() == 0 ? 3u : 1u};
    const uint64_t takes[2] = {c.rank() == 1 ? 2u : 1u, 1};
    db_op op{};
    op.kind = DB_ALL_TO_ALL_V;
    op.dtype = DB_F32;
    op.send = send.data();
    op.recv = recv.data();
    op.send_counts = sends;
    op.recv_counts = takes;
    c.run(op);
  });
  expect_errors(errors, ErrorCode::kMismatch, {"all_to_all_v f32", "rank 0", "rank 1", "3", "2"});
}

TEST(Mismatch, SendAndReceiveOfOtherSize_NamesBothRanks) {
  const auto errors = run_ranks(2, [](Communicator& c) {
    std::vector<float> values(8);
    db_op op = all_reduce(values);
    op.kind = c.rank() == 0 ? DB_SEND : DB_RECV;
    op.root_or_peer = 1 - c.rank();
    op.count = c.rank() == 0 ? 8 : 4;
    c.run(op);
    c.run(barrier());
  });
  expect_errors(errors, ErrorCode::kMismatch, {"rank 0", "rank 1", "send", "recv", "x8", "x4"});
}

TEST(Mismatch, FirstErrorStays_LaterCallsGetItAgain) {
  expect_no_error(run_ranks(2, [](Communicator& c) {
    std::vector<float> values(8);
    db_op op = all_reduce(values);
    op.count = c.rank() == 0 ? 8 : 4;
    std::string first;
    try {
      c.run(op);
    } catch (const Error& error) {
      first = error.what();
    }
    try {
      c.run(barrier());
      ADD_FAILURE() << "the communicator continued";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_EQ(error.what(), first);
    }
  }));
}

TEST(Mismatch, OneRankRefusedTheOperation_TheOthersAreToldAndNotStuck) {
  const auto errors = run_ranks(2, [](Communicator& c) {
    // The double refuses a broadcast if its own rank has no buffer.
    std::vector<float> values(8);
    db_op op = all_reduce(values);
    op.kind = DB_BROADCAST;
    if (c.rank() == 1) op.recv = nullptr;
    c.run(op);
  });
  ASSERT_TRUE(errors[1]);
  EXPECT_EQ(errors[1]->code(), ErrorCode::kInvalidArgument) << errors[1]->what();
  ASSERT_TRUE(errors[0]);
  EXPECT_EQ(errors[0]->code(), ErrorCode::kMismatch) << errors[0]->what();
  EXPECT_NE(std::string(errors[0]->what()).find("rank 1's backend refused"), std::string::npos)
      << errors[0]->what();
}

TEST(Timeout, RankThatNeverComes_IsNamedWithItsLastOperation) {
  const auto quick = [](RankSetup& setup) {
    setup.backend.timeout = std::chrono::milliseconds(300);
  };
  for (const bool apart : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    const auto start = std::chrono::steady_clock::now();
    run_ranks(
        3,
        [&](Communicator& c) {
          std::vector<float> values(4);
          const CallSite site("src/train.cc", 42);
          c.run(all_reduce(values));
          if (c.rank() == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1500));
            return;
          }
          try {
            c.run(barrier());
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
            EXPECT_EQ(error.detail().rank, 2);
            const std::lock_guard lock(mutex);
            texts.emplace_back(error.what());
          }
        },
        [&](RankSetup& setup) {
          quick(setup);
          if (apart) far_apart(setup);
        });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    ASSERT_EQ(texts.size(), 2u);
    for (const std::string& text : texts) {
      EXPECT_NE(text.find("rank 2 has not reached operation 2"), std::string::npos) << text;
      EXPECT_NE(text.find("barrier"), std::string::npos) << text;
      if (!apart) {
        EXPECT_NE(
            text.find("its last was 1 (all_reduce f32 x4 sum), and its program's last call was "
                      "at train.cc:42"),
            std::string::npos)
            << text;
      }
    }
  }
}

TEST(CannotAbortDeathTest, StuckRank_ProcessEndsWithFourAndTheText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        run_ranks(
            2,
            [](Communicator& c) {
              std::vector<float> values(8);
              db_op op = all_reduce(values);
              op.count = c.rank() == 0 ? 8 : 4;
              // If both arrived at once, they would see the mismatch, and neither would get stuck.
              if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
              try {
                c.run(op);
              } catch (const Error&) {
                std::this_thread::sleep_for(std::chrono::seconds(20));
              }
            },
            {}, "double_cannot_abort");
      },
      ::testing::ExitedWithCode(4), "all_reduce f32 x. sum.*\n.*cannot end the operation");
}

TEST(CannotAbortDeathTest, RankThatNeverComes_ProcessEndsWithFourNamingIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        run_ranks(
            2,
            [](Communicator& c) {
              if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
              c.run(barrier());
            },
            [](RankSetup& setup) { setup.backend.timeout = std::chrono::milliseconds(200); },
            "double_cannot_abort");
      },
      ::testing::ExitedWithCode(4), "rank 1 has not reached operation 1");
}

}  // namespace
}  // namespace coupler::comm
