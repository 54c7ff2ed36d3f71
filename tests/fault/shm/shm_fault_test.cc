// Faults of shm: a killed or stopped rank, a rank that never joins, ranks that disagree, abort.
// Every survivor must soon get an error that names the right rank, and nothing is left behind.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ranks/faults.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

TEST(ShmFault, Kill_Small_EverySurvivorNamesIt) {
  check_kill(job_of(2), 1, 16, true);
  check_kill(job_of(4), 2, 16, true);
}
TEST(ShmFault, Kill_Large_EverySurvivorNamesIt) { check_kill(job_of(4), 1, 1 << 20, true); }
TEST(ShmFault, Kill_Asynchronous_EverySurvivorNamesIt) {
  check_kill(job_of(2), 0, 1 << 18, false);
  check_kill(job_of(3), 2, 1 << 16, false);
}

TEST(ShmFault, Kill_PeerOfAMessage_SurvivorNamesIt) {
  for (const bool blocking : {true, false}) {
    const std::vector<int> statuses = fork_ranks(job_of(2), [&](int32_t rank, Rank& self) {
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        kill(getpid(), SIGKILL);
      }
      float data = 0;
      db_op op{};
      op.kind = DB_RECV;
      op.dtype = DB_F32;
      op.recv = &data;
      op.count = 1;
      op.root_or_peer = 1;
      const auto begin = steady_clock::now();
      EXPECT_EQ(self.run(op, blocking), DB_ERR_PEER_LOST) << self.error.text.data();
      EXPECT_EQ(self.error.error.failed_rank, 1);
      EXPECT_LT(milliseconds_since(begin), 10'000);
      EXPECT_TRUE(contains(self.error, "recv")) << self.error.text.data();
    });
    EXPECT_EQ(statuses[0], 0);
  }
}

// Rank 0 waits for messages of two ranks, of which the second dies.
TEST(ShmFault, Kill_PeerOfOneOfSeveralMessages_SurvivorNamesIt) {
  const std::vector<int> statuses = fork_ranks(job_of(3), [&](int32_t rank, Rank& self) {
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      kill(getpid(), SIGKILL);
    }
    if (rank == 1) {  // stays, and sends nothing
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    float data[2] = {};
    db_request* requests[2] = {};
    Error error;
    for (int32_t peer : {1, 2}) {
      db_op op{};
      op.struct_size = sizeof op;
      op.kind = DB_RECV;
      op.dtype = DB_F32;
      op.memory = DB_MEMORY_HOST;
      op.recv = &data[peer - 1];
      op.count = 1;
      op.root_or_peer = peer;
      ASSERT_EQ(self.functions->submit(self.communicator, &op, &requests[peer - 1], error),
                DB_IN_PROGRESS);
    }
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.functions->wait_host(requests[1], -1, error), DB_ERR_PEER_LOST);
    EXPECT_LT(milliseconds_since(begin), 10'000);
    EXPECT_EQ(error.error.failed_rank, 2) << error.text.data();
    for (db_request* request : requests) self.functions->release(request);
  });
  EXPECT_EQ(statuses[0], 0);
}

// Files in /dev/shm and /tmp that this backend may have made.
std::set<std::string> left_files() {
  std::set<std::string> names;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    std::error_code gone;  // files of other programs may disappear meanwhile
    for (const auto& entry : std::filesystem::directory_iterator(folder, gone))
      if (entry.path().filename().string().find("coupler-shm") == 0)
        names.insert(entry.path().string());
  }
  return names;
}

TEST(ShmFault, KillOfAllRanks_LeavesNothing) {
  const std::set<std::string> before = left_files();
  const std::vector<int> statuses = fork_ranks(job_of(3), [&](int32_t, Rank& self) {
    std::vector<float> data(1 << 16, 1);
    for (int i = 0; i < 10; ++i) self.run(all_reduce(data.data(), data.data(), data.size()), true);
    kill(getpid(), SIGKILL);
  });
  for (const int status : statuses) EXPECT_TRUE(WIFSIGNALED(status)) << status;
  for (const std::string& file : left_files()) {
    if (before.count(file) > 0) continue;
    // The file may belong to another running test, whose socket has its name for a moment.
    const auto begin = steady_clock::now();
    while (left_files().count(file) > 0 && milliseconds_since(begin) < 10'000)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(left_files().count(file), 0u) << file;
  }
}

// The host names a stopped rank within a second. Here, without it, the deadline does, and says why.
TEST(ShmFault, Stopped_TimeoutSaysSo) {
  pid_t resumer = -1;
  const std::vector<int> statuses = fork_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    float data = 1;
    ASSERT_EQ(self.run(all_reduce(&data, &data, 1), true), DB_OK);
    if (rank == 1) {
      // A process that continues this one later.
      const pid_t self_pid = getpid();
      resumer = fork();
      if (resumer == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        kill(self_pid, SIGCONT);
        _exit(0);
      }
      raise(SIGSTOP);
      waitpid(resumer, nullptr, 0);
      return;
    }
    db_op op = all_reduce(&data, &data, 1);
    op.timeout_ns = 700'000'000;
    EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT);
    EXPECT_EQ(self.error.error.failed_rank, 1);
    EXPECT_TRUE(contains(self.error, "is stopped")) << self.error.text.data();
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(ShmFault, Timeout_RankDoesNotCome_NamesRankAndOperation) {
  check_timeout(job_of(3), true, 10);
  check_timeout(job_of(3), false, 10);
  check_timeout(job_of(3), true, 1 << 20);
}

TEST(ShmFault, Timeout_OneComesLaterAndOneNever_NamesTheOneThatNeverCame) {
  check_late_and_absent(job_of(3));
}

TEST(ShmFault, Timeout_ReceiveWithoutSend_NamesPeer) { check_receive_without_send(job_of(2)); }

TEST(ShmFault, Mismatch_CountTypeReductionOrKind_ErrorNamesBoth) { check_mismatches(job_of(2)); }

TEST(ShmFault, Mismatch_CountsOfAllToAllV_ErrorNamesBothAndTheBytes) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    const std::vector<uint64_t> sends = {1, rank == 0 ? 5u : 1u},
                                receives = {rank == 0 ? 1u : 4u, 1};
    std::vector<float> send(6), recv(5);
    db_op op{};
    op.kind = DB_ALL_TO_ALL_V;
    op.dtype = DB_F32;
    op.send = send.data();
    op.recv = recv.data();
    op.send_counts = sends.data();
    op.recv_counts = receives.data();
    EXPECT_EQ(self.run(op, true), DB_ERR_MISMATCH) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 0 sends 20 bytes to rank 1, which expects 16"))
        << self.error.text.data();
  });
}

TEST(ShmFault, Mismatch_Messages_ErrorNamesBoth) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(16, 1);
    db_op op{};
    op.kind = rank == 0 ? DB_SEND : DB_RECV;
    op.dtype = DB_F32;
    op.send = op.recv = data.data();
    op.count = 16;
    op.tag = rank;
    op.root_or_peer = 1 - rank;
    db_status status = self.run(op, true);
    float one = 1;  // the sender learns it at its next operation
    if (status == DB_OK) status = self.run(all_reduce(&one, &one, 1), true);
    EXPECT_EQ(status, DB_ERR_MISMATCH) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "rank 0 sent 16 f32 with tag 0")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, "expects 16 f32 with tag 1")) << self.error.text.data();
  });
}

TEST(ShmFault, Abort_FromAnotherThread_EndsTheWait) { check_abort(job_of(2)); }

TEST(ShmFault, Abort_PeersInTheOperation_AreTold) {
  expect_ranks(job_of(2), [&](int32_t rank, Rank& self) {
    float data = 1;
    ASSERT_EQ(self.run(all_reduce(&data, &data, 1), true), DB_OK);
    if (rank == 1) {
      EXPECT_EQ(self.functions->abort(self.communicator), DB_OK);
      return;
    }
    const auto begin = steady_clock::now();
    EXPECT_EQ(self.run(all_reduce(&data, &data, 1), true), DB_ERR_PEER_LOST);
    EXPECT_LT(milliseconds_since(begin), 10'000);
    EXPECT_EQ(self.error.error.failed_rank, 1);
    EXPECT_TRUE(contains(self.error, "has left the communicator")) << self.error.text.data();
  });
}

TEST(ShmFault, Destroy_WhileOperationsAreQueued_EndsSoon) { check_destroy(job_of(2)); }

TEST(ShmFault, Create_PeerNeverComes_TimesOutNamingIt) { check_absent_at_create(Job{}); }

TEST(ShmFault, Create_WrongOptions_ErrorNamesWhatIsValid) {
  db_option odd{};
  odd.struct_size = sizeof odd;
  odd.key = "chunk_bytes";
  odd.type = DB_OPTION_I64;
  odd.i64 = 5000;
  db_option unknown = odd;
  unknown.key = "chunk_byte";
  check_refused({{&odd, DB_ERR_INVALID_ARGUMENT, "must be 0 or a multiple of 4096"},
                 {&unknown, DB_ERR_UNKNOWN_OPTION, "chunk_bytes"}});
}

}  // namespace
}  // namespace backend_test
