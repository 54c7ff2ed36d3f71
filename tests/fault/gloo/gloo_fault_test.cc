// Faults of gloo_cpu: a killed rank, a rank that never joins, ranks that disagree, abort, wrong
// options. Every survivor must soon get an error that names the right rank.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "by_algorithm.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

using std::chrono::steady_clock;

bool contains(const Error& error, const std::string& text) {
  return std::string(error.text.data()).find(text) != std::string::npos;
}

class GlooFaultByAlgorithm : public ByAlgorithm {};
INSTANTIATE_TEST_SUITE_P(, GlooFaultByAlgorithm, ::testing::Values("auto", "gloo"), algorithm_name);

// Ranks all-reduce until it fails; the victim kills itself midway. All other ranks must name it,
// and the communicator must be dead.
void check_kill(const Job& job, int32_t victim, uint64_t count, bool blocking) {
  const std::vector<int> statuses = fork_ranks(job, [&](int32_t rank, Rank& self) {
    std::vector<float> data(count, 1);
    std::thread killer;
    if (rank == victim) {
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        kill(getpid(), SIGKILL);
      });
    }
    const auto begin = steady_clock::now();
    db_status status = DB_OK;
    while (status == DB_OK && milliseconds_since(begin) < 20000)
      status = self.run(all_reduce(data.data(), data.data(), count), blocking);
    if (killer.joinable()) killer.join();
    EXPECT_LT(milliseconds_since(begin), 5000);
    EXPECT_EQ(status, DB_ERR_PEER_LOST) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, victim) << self.error.text.data();
    EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
    EXPECT_TRUE(contains(self.error, "rank " + std::to_string(victim))) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "all_reduce")) << self.error.text.data();
    Error error;
    EXPECT_EQ(self.functions->async_error(self.communicator, error), DB_ERR_PEER_LOST);
    EXPECT_LT(self.run(all_reduce(data.data(), data.data(), count), blocking), 0);
  });
  for (int32_t rank = 0; rank < job.size; ++rank) {
    const int status = statuses[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    } else {
      EXPECT_EQ(status, 0) << "rank " << rank << " of " << job.size;
    }
  }
}

TEST_P(GlooFaultByAlgorithm, Kill_TwoRanksSmall_SurvivorNamesIt) {
  check_kill(job_of(2), 1, 16, true);
}
TEST_P(GlooFaultByAlgorithm, Kill_TwoRanksAsynchronous_SurvivorNamesIt) {
  check_kill(job_of(2), 0, 1 << 18, false);
}
TEST_P(GlooFaultByAlgorithm, Kill_FourRanksSmall_EverySurvivorNamesIt) {
  check_kill(job_of(4), 2, 16, true);
}
TEST_P(GlooFaultByAlgorithm, Kill_FourRanksLarge_EverySurvivorNamesIt) {
  check_kill(job_of(4), 1, 1 << 20, true);
}
TEST_P(GlooFaultByAlgorithm, Kill_ThreeRanksAsynchronous_EverySurvivorNamesIt) {
  check_kill(job_of(3), 2, 1 << 16, false);
}

void check_timeout(const Job& job, bool blocking, uint64_t count) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    std::vector<float> data(count, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), count), blocking), DB_OK);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    db_op op = all_reduce(data.data(), data.data(), count);
    op.timeout_ns = 300'000'000;
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(op, blocking), DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_GE(milliseconds_since(begin), 250);
    EXPECT_LT(milliseconds_since(begin), 3000);
    EXPECT_EQ(self.error.error.failed_rank, 1) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "all_reduce")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 1")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "300 ms")) << self.error.text.data();
    EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
    EXPECT_EQ(self.run(op, blocking), DB_ERR_ABORTED);
  });
}

TEST_P(GlooFaultByAlgorithm, Timeout_RankDoesNotCome_NamesRankAndOperation) {
  check_timeout(job_of(3), true, 10);
  check_timeout(job_of(3), false, 10);
  check_timeout(job_of(3), true, 1 << 20);
}

// The rank that waits longest gives up first, before the one that started later.
TEST_P(GlooFaultByAlgorithm, Timeout_OneComesLaterAndOneNever_NamesTheOneThatNeverCame) {
  constexpr int32_t kLate = 0;
  for (const int32_t absent : {1, 2}) {
    expect_ranks(job_of(3), [&](int32_t rank, Rank& self) {
      std::vector<float> data(1000, 1);
      ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), data.size()), true), DB_OK);
      if (rank == absent) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        return;
      }
      if (rank == kLate) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      db_op op = all_reduce(data.data(), data.data(), data.size());
      op.timeout_ns = 500'000'000;
      EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT) << self.error.text.data();
      EXPECT_EQ(self.error.error.failed_rank, absent) << self.error.text.data();
    });
  }
}

TEST(GlooFault, Timeout_ReceiveWithoutSend_NamesPeer) {
  expect_ranks(Job{}, [&](int32_t rank, Rank& self) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
      return;
    }
    for (const bool blocking : {false}) {
      float data = 0;
      db_op op{};
      op.kind = DB_RECV;
      op.dtype = DB_F32;
      op.recv = &data;
      op.count = 1;
      op.root_or_peer = 1;
      op.timeout_ns = 200'000'000;
      EXPECT_EQ(self.run(op, blocking), DB_ERR_TIMEOUT);
      EXPECT_EQ(self.error.error.failed_rank, 1);
      EXPECT_TRUE(contains(self.error, "recv")) << self.error.text.data();
    }
  });
}

void check_mismatch(const Job& job, const std::function<void(int32_t, db_op*)>& change,
                    const std::vector<std::string>& texts) {
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    std::vector<float> data(100, 1);
    db_op op = all_reduce(data.data(), data.data(), 50);
    change(rank, &op);
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(op, true), DB_ERR_MISMATCH) << self.error.text.data();
    EXPECT_LT(milliseconds_since(begin), 5000);
    EXPECT_TRUE(contains(self.error, "rank 0")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 1")) << self.error.text.data();
    for (const std::string& text : texts)
      EXPECT_TRUE(contains(self.error, text)) << self.error.text.data();
  });
}

TEST_P(GlooFaultByAlgorithm, Mismatch_CountTypeReductionKindOrTag_ErrorNamesBoth) {
  check_mismatch(job_of(2),
                 [](int32_t rank, db_op* op) { op->count += static_cast<uint64_t>(rank); },
                 {"50 f32", "51 f32"});
  check_mismatch(job_of(2),
                 [](int32_t rank, db_op* op) { op->dtype = rank == 0 ? DB_F32 : DB_I32; },
                 {"f32", "i32"});
  check_mismatch(job_of(2),
                 [](int32_t rank, db_op* op) { op->reduce = rank == 0 ? DB_SUM : DB_MAX; },
                 {"sum", "max"});
  check_mismatch(job_of(2),
                 [](int32_t rank, db_op* op) {
                   if (rank == 1) op->kind = DB_BARRIER, op->reduce = 0;
                 },
                 {"all_reduce", "barrier"});
}

TEST(GlooFault, Mismatch_RanksWithDifferentAlgorithms_IsAnErrorAndNoResult) {
  const Folder folder;
  const FileStore store(folder.path);
  const DistributedBackend* const backend = load_backend();
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const db_option algorithm = text_option("algorithm", rank == 0 ? "auto" : "gloo");
      Job job;
      job.options = {&algorithm};
      Rank self(backend, job, rank, store.table());
      ASSERT_EQ(self.created, DB_OK) << self.error.text.data();
      const db_op barrier = [] {  // its messages are the same except for the slot
        db_op op{};
        op.kind = DB_BARRIER;
        return op;
      }();
      EXPECT_EQ(self.run(barrier, true), DB_ERR_MISMATCH) << self.error.text.data();
      EXPECT_TRUE(self.error.error.flags & DB_ERROR_COMM_DEAD);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(GlooFaultByAlgorithm, Abort_FromAnotherThread_EndsTheWait) {
  for (const bool blocking : {true, false}) {
    expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
      float data = 1;
      ASSERT_EQ(self.run(all_reduce(&data, &data, 1), true), DB_OK);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
        return;
      }
      std::thread aborter([&self] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_EQ(self.functions->abort(self.communicator), DB_OK);
      });
      const auto begin = steady_clock::now();
      EXPECT_EQ(self.run(all_reduce(&data, &data, 1), blocking), DB_ERR_ABORTED)
          << self.error.text.data();
      EXPECT_LT(milliseconds_since(begin), 1000);
      aborter.join();
      EXPECT_EQ(self.run(all_reduce(&data, &data, 1), blocking), DB_ERR_ABORTED);
    });
  }
}

TEST_P(GlooFaultByAlgorithm, Destroy_WhileOperationsAreQueued_EndsSoon) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(1 << 20, 1);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::vector<db_request*> requests(5);
    Error error;
    db_op op = all_reduce(data.data(), data.data(), data.size());
    op.struct_size = sizeof op;
    op.memory = DB_MEMORY_HOST;
    for (db_request*& request : requests)
      ASSERT_EQ(self.functions->submit(self.communicator, &op, &request, error), DB_IN_PROGRESS);
    for (db_request* request : requests) self.functions->release(request);
    const auto begin = steady_clock::now();
    self.functions->destroy(self.communicator);
    self.communicator = nullptr;
    EXPECT_LT(milliseconds_since(begin), 2000);
  });
}

TEST(GlooFault, Create_PeerNeverComes_TimesOutNamingIt) {
  Job job;
  job.size = 3;
  job.present = 2;
  job.timeout_ns = 300'000'000;
  job.must_connect = false;
  expect_ranks(job, [&](int32_t, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, 2);
    EXPECT_TRUE(contains(self.error, "rank 2")) << self.error.text.data();
  });
}

TEST(GlooFault, Create_WrongOptions_ErrorNamesWhatIsValid) {
  const db_option unknown = text_option("algoritm", "auto");
  const db_option value = text_option("algorithm", "ring");
  const db_option type = text_option("chunk_bytes", "many");
  const struct {
    const db_option* option;
    db_status status;
    const char* text;
  } cases[] = {{&unknown, DB_ERR_UNKNOWN_OPTION, "algorithm"},
               {&value, DB_ERR_INVALID_ARGUMENT, "auto, exchange, scatter, gloo"},
               {&type, DB_ERR_INVALID_ARGUMENT, "chunk_bytes"}};
  for (const auto& each : cases) {
    Job job;
    job.present = 1;
    job.must_connect = false;
    job.options = {each.option};
    expect_ranks(job, [&](int32_t, Rank& self) {
      EXPECT_EQ(self.created, each.status);
      EXPECT_TRUE(contains(self.error, each.text)) << self.error.text.data();
    });
  }
}

TEST(GlooFault, Probe_HereWithLibgloo_SaysWhich) {
  const DistributedBackend* const backend = load_backend();
  ASSERT_NE(backend, nullptr);
  int32_t score = 0;
  char reason[256] = "";
  ASSERT_EQ(backend->probe(nullptr, &score, reason, sizeof reason), DB_OK);
  EXPECT_GT(score, 0);
  EXPECT_NE(std::string(reason).find("libgloo"), std::string::npos) << reason;
}

}  // namespace
}  // namespace backend_test
