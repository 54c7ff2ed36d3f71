// Faults of gloo_cpu: a killed rank, a rank that never joins, ranks that disagree, abort, wrong
// options. Every survivor must soon get an error that names the right rank.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "by_algorithm.h"
#include "ranks/faults.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

class GlooFaultByAlgorithm : public ByAlgorithm {};
INSTANTIATE_TEST_SUITE_P(, GlooFaultByAlgorithm, ::testing::Values("auto", "halving", "gloo"),
                         algorithm_name);

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

TEST_P(GlooFaultByAlgorithm, Timeout_RankDoesNotCome_NamesRankAndOperation) {
  check_timeout(job_of(3), true, 10);
  check_timeout(job_of(3), false, 10);
  check_timeout(job_of(3), true, 1 << 20);
}

// The rank that waits longest gives up first, before the one that started later.
TEST_P(GlooFaultByAlgorithm, Timeout_OneComesLaterAndOneNever_NamesTheOneThatNeverCame) {
  check_late_and_absent(job_of(3));
}

TEST(GlooFault, Timeout_ReceiveWithoutSend_NamesPeer) { check_receive_without_send(Job{}); }

TEST_P(GlooFaultByAlgorithm, Mismatch_CountTypeReductionKindOrTag_ErrorNamesBoth) {
  check_mismatches(job_of(2));
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

TEST_P(GlooFaultByAlgorithm, Abort_FromAnotherThread_EndsTheWait) { check_abort(job_of(2)); }

TEST_P(GlooFaultByAlgorithm, Destroy_WhileOperationsAreQueued_EndsSoon) {
  check_destroy(job_of(2));
}

TEST(GlooFault, Create_PeerNeverComes_TimesOutNamingIt) { check_absent_at_create(Job{}); }

TEST(GlooFault, Create_WrongOptions_ErrorNamesWhatIsValid) {
  const db_option unknown = text_option("algoritm", "auto");
  const db_option value = text_option("algorithm", "ring");
  const db_option type = text_option("chunk_bytes", "many");
  const db_option few = number_option("halving_ranks", 1);
  check_refused({{&unknown, DB_ERR_UNKNOWN_OPTION, "algorithm"},
                 {&value, DB_ERR_INVALID_ARGUMENT, "auto, exchange, scatter, gloo"},
                 {&type, DB_ERR_INVALID_ARGUMENT, "chunk_bytes"},
                 {&few, DB_ERR_INVALID_ARGUMENT, "halving_ranks"}});
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
