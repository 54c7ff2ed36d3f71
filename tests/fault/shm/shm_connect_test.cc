// How ranks of shm come to share memory: only with the job's secret, across containers if they can
// reach each other, and if they cannot, every rank says why and what to do.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ranks/crowd.h"
#include "ranks/faults.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

Job failing_job_of(int32_t size) {
  Job job = job_of(size);
  job.must_connect = false;
  return job;
}

void expect_sum(int32_t size, Rank& self) {
  float one = 1;
  EXPECT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_OK) << self.error.text.data();
  EXPECT_EQ(one, static_cast<float>(size));
}

// Every rank reports this status, with all the texts.
void expect_refusal(Job job, db_status status, const std::vector<std::string>& texts) {
  job.must_connect = false;
  expect_ranks(job, [&](int32_t, Rank& self) {
    EXPECT_EQ(self.created, status) << self.error.text.data();
    for (const std::string& text : texts)
      EXPECT_TRUE(contains(self.error, text)) << text << " is not in: " << self.error.text.data();
  });
}

TEST(ShmConnect, OneToSixRanks_WithAndWithoutASecret_Reduce) {
  for (int32_t size = 1; size <= 6; ++size) {
    Job job = job_of(size);
    expect_ranks(job, [&](int32_t, Rank& self) { expect_sum(size, self); });
    job.secret = "";
    expect_ranks(job, [&](int32_t, Rank& self) { expect_sum(size, self); });
  }
}

// Rank 0 ends its wait first, so that its reason reaches the other.
TEST(ShmConnect, RankWithAnotherSecret_IsNotTaken) {
  Job job = failing_job_of(2);
  job.timeout_ns = 1'000'000'000;
  job.prepare = [](int32_t rank, Job* own) {
    if (rank == 1) own->secret = "a guess";
  };
  expect_ranks(job, [](int32_t rank, Rank& self) {
    EXPECT_TRUE(rank == 1 || self.created == DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_LT(self.created, 0);
    EXPECT_EQ(self.error.error.failed_rank, 1 - rank);
  });
}

// Ranks are threads here. Rank 0 listens once all have announced themselves, so rank 2's
// announcement is there long before rank 2.
TEST(ShmConnect, CrowdThatHoldsOrTalksNonsense_CostsOnlyItself) {
  const Folder folder;
  Crowd crowd("shm");
  const auto begin = steady_clock::now();
  const auto rank_of = [&](int32_t rank) {
    const FileStore store(folder.path, "a secret");
    Rank self(load_backend(), job_of(3), rank, store.table());
    ASSERT_EQ(self.created, DB_OK) << self.error.text.data();
    expect_sum(3, self);
  };
  std::thread first([&] { rank_of(0); }), second([&] { rank_of(1); });
  const std::string announced = folder.path + "/v.shm_1";
  while (!std::filesystem::exists(announced) && milliseconds_since(begin) < 10'000)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::copy_file(announced, folder.path + "/copy");  // rank 0 must not read half of it
  std::filesystem::rename(folder.path + "/copy", folder.path + "/v.shm_2");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  std::thread third([&] { rank_of(2); });
  for (std::thread* rank : {&first, &second, &third}) rank->join();
  crowd.end();
  EXPECT_GT(crowd.connected(), 300);
  EXPECT_LT(milliseconds_since(begin), 15'000);
}

TEST(ShmConnect, RanksThatDisagreeOnTheirNumber_AreTold) {
  Job job = failing_job_of(2);
  job.prepare = [](int32_t rank, Job* own) { own->size = rank == 0 ? 2 : 3; };
  expect_refusal(job, DB_ERR_MISMATCH, {"rank 1 has 3 ranks, but rank 0 has 2"});
}

// Rank 1 is a text in the store.
void expect_refusal_of_announcement(const std::string& text, db_status status,
                                    const std::vector<std::string>& texts) {
  const Folder folder;
  std::ofstream(folder.path + "/v.shm_1") << text;
  const FileStore store(folder.path, "a secret");
  const Rank self(load_backend(), job_of(2), 0, store.table());
  EXPECT_EQ(self.created, status) << self.error.text.data();
  EXPECT_EQ(self.error.error.failed_rank, 1);
  for (const std::string& part : texts)
    EXPECT_TRUE(contains(self.error, part)) << self.error.text.data();
  EXPECT_TRUE(std::filesystem::exists(folder.path + "/v.shm_verdict")) << "rank 1 is not told";
}

TEST(ShmConnect, RankOfAnotherMachine_IsNamedWithAHint) {
  expect_refusal_of_announcement(
      "coupler-shm 0.1.0-3 2 another-boot 1 2 3 0 77 0 node17", DB_ERR_UNSUPPORTED,
      {"rank 1 runs on the machine node17", "shm connects the ranks of one machine",
       "set backend.use to \"hierarchical\""});
}

// Rank 2 has another boot id, as on another machine.
TEST(ShmConnect, RanksOfTwoMachines_EveryRankNamesTheMachinesWithAHint) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount";
  const Folder folder;
  const std::string boot_id = folder.path + "/boot_id";
  std::ofstream(boot_id) << "another-boot\n";
  Job job = job_of(3);
  job.prepare = [&](int32_t rank, Job*) {
    if (rank != 2) return;
    ASSERT_EQ(unshare(CLONE_NEWNS | CLONE_NEWUTS), 0) << strerror(errno);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount(boot_id.c_str(), "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr),
              0)
        << strerror(errno);
    ASSERT_EQ(sethostname("node17", 6), 0);
  };
  expect_refusal(
      job, DB_ERR_UNSUPPORTED,
      {"rank 2 runs on the machine node17, rank 0 on ", "set backend.use to \"hierarchical\""});
}

TEST(ShmConnect, RankWithAnotherVersion_IsNamedWithAHint) {
  expect_refusal_of_announcement("coupler-shm 9.9.9-7 2 another-boot 1 2 3 0 77 0 node17",
                                 DB_ERR_MISMATCH,
                                 {"rank 1 has version 9.9.9-7", "install the same version"});
  expect_refusal_of_announcement("something else", DB_ERR_MISMATCH, {"rank 1", "format"});
}

// Rank 0 is texts in the store.
TEST(ShmConnect, RankZeroWithAnotherVersion_IsNamedWithAHint) {
  const Folder folder;
  for (const char* key : {"/v.shm_0", "/v.shm_verdict"})
    std::ofstream(folder.path + key) << "something else";
  const FileStore store(folder.path, "a secret");
  const Rank self(load_backend(), job_of(2), 1, store.table());
  EXPECT_EQ(self.created, DB_ERR_MISMATCH) << self.error.text.data();
  EXPECT_EQ(self.error.error.failed_rank, 0);
  for (const char* part : {"rank 0", "format", "install the same version"})
    EXPECT_TRUE(contains(self.error, part)) << self.error.text.data();
}

TEST(ShmConnect, RankOfAnotherUser_IsNamedWithAHint) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can start ranks of another user";
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 0) return;
    ASSERT_EQ(seteuid(65534), 0);
    setfsuid(0);  // the store's folder belongs to root
  };
  expect_refusal(
      job, DB_ERR_UNSUPPORTED,
      {"rank 1 runs as user 65534, rank 0 as user 0", "start all ranks as the same user"});
}

// Continues in a child of the calling process, in namespaces of its own.
void enter_namespaces(int flags) {
  if (unshare(flags) != 0) {
    std::perror("unshare");
    _exit(1);
  }
  const pid_t child = fork();
  if (child == 0) return;
  int status = 0;
  waitpid(child, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

TEST(ShmConnect, PrivatePidNamespaces_ShareMemoryAndSeeAKill) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make PID namespaces";
  Job job = job_of(3);
  job.prepare = [](int32_t, Job*) { enter_namespaces(CLONE_NEWPID); };
  const std::vector<int> statuses = fork_ranks(job, [](int32_t rank, Rank& self) {
    expect_sum(3, self);
    if (rank == 2) {
      // The first process of a namespace cannot kill itself; its end without a word is the same.
      _exit(0);
    }
    float one = 1;
    EXPECT_EQ(self.run(all_reduce(&one, &one, 1), true), DB_ERR_PEER_LOST);
    EXPECT_EQ(self.error.error.failed_rank, 2) << self.error.text.data();
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// Gives the calling process a /proc of its own that shows only what it may trace.
bool hide_processes() {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=ptraceable") ==
             0;
}

bool can_hide_processes() {
  const pid_t child = fork();
  if (child == 0) _exit(hide_processes() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status == 0;
}

// The ranks are one user's without rights over another process, as on a cluster whose /proc is
// mounted with hidepid.
TEST(ShmConnect, ProcMountedWithHidepid_ShareMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount";
  if (!can_hide_processes()) GTEST_SKIP() << "/proc cannot be mounted with hidepid=ptraceable here";
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  Job job = job_of(2);
  job.prepare = [&](int32_t rank, Job*) {
    if (rank == 1) {
      ASSERT_TRUE(hide_processes()) << strerror(errno);
    }
    ASSERT_EQ(seteuid(65534), 0);
    setfsuid(0);  // the store's folder belongs to root
    pid_t pid = getpid();
    if (rank == 0) {
      ASSERT_EQ(write(ends[1], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
      return;
    }
    ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    ASSERT_TRUE(std::filesystem::exists("/proc/self/fd"));
    ASSERT_FALSE(std::filesystem::exists("/proc/" + std::to_string(pid)));
  };
  expect_ranks(job, [&](int32_t, Rank& self) { expect_sum(2, self); });
  for (const int end : ends) close(end);
}

// The same where /proc cannot be mounted so: rank 1 does not see the process of rank 0.
TEST(ShmConnect, HiddenProcess_ShareMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount";
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  Job job = job_of(2);
  job.prepare = [&](int32_t rank, Job*) {
    pid_t pid = getpid();
    if (rank == 0) {
      ASSERT_EQ(write(ends[1], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
      return;
    }
    ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    const std::string folder = "/proc/" + std::to_string(pid);
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr), 0) << strerror(errno);
    ASSERT_FALSE(std::filesystem::exists(folder + "/fd"));
  };
  expect_ranks(job, [&](int32_t, Rank& self) { expect_sum(2, self); });
  for (const int end : ends) close(end);
}

TEST(ShmConnect, ContainersThatShareNothing_AreNamedWithAHint) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make namespaces";
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 1) enter_namespaces(CLONE_NEWPID | CLONE_NEWNET);
  };
  expect_refusal(job, DB_ERR_UNSUPPORTED,
                 {"rank 1 runs in another container than rank 0", "--network host", "--pid host"});
}

void limit(decltype(RLIMIT_AS) what, uint64_t value) {
  const rlimit limits{value, value};
  if (setrlimit(what, &limits) != 0) std::perror("setrlimit");
}

TEST(ShmConnect, NoRoomInFiles_EveryRankSaysWhichLimit) {
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 0) limit(RLIMIT_FSIZE, 1 << 20);
  };
  expect_refusal(job, DB_ERR_NO_MEMORY, {"cannot share", "raise `ulimit -f`"});
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ShmConnect, NoAddressSpace_EveryRankNamesTheRankAndTheLimit) {
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 0) return;
    // What it has, and not enough for the segment.
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit(RLIMIT_AS, pages * 4096 + (3 << 20) / 2);
  };
  expect_refusal(job, DB_ERR_NO_MEMORY, {"rank 1", "cannot share", "raise `ulimit -v`"});
}

// Root may lock more than its limit; this is without that right.
void give_up_locking_more() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) std::perror("capget");
  sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  if (syscall(SYS_capset, &header, sets) != 0) std::perror("capset");
}

TEST(ShmConnect, LockedMemoryAndNoRoom_EveryRankNamesTheRankAndTheLimit) {
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 0) return;
    load_backend();  // maps files
    give_up_locking_more();
    limit(RLIMIT_MEMLOCK, (3 << 20) / 2);
    ASSERT_EQ(mlockall(MCL_FUTURE), 0) << strerror(errno);
  };
  expect_refusal(job, DB_ERR_SYSTEM, {"rank 1", "cannot share", "raise `ulimit -l`"});
}
#endif

TEST(ShmConnect, NoDescriptors_EveryRankNamesTheRankAndTheLimit) {
  Job job = job_of(2);
  job.prepare = [](int32_t rank, Job*) {
    if (rank == 0) return;
    load_backend();  // opens files
    const int next = dup(0);
    close(next);
    // Enough for the store, the lifeline and the connection, but not for what rank 0 passes.
    limit(RLIMIT_NOFILE, static_cast<uint64_t>(next) + 3);
  };
  expect_refusal(job, DB_ERR_SYSTEM, {"raise `ulimit -n`"});
}

// Descriptors of this process, but for those of the listing itself.
size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd"), end;
  return static_cast<size_t>(std::distance(all, end));
}

TEST(ShmConnect, Destroyed_NoDescriptorIsLeft) {
  expect_ranks(job_of(3), [](int32_t, Rank& self) {
    const size_t with_one = open_descriptors();
    for (int i = 0; i < 5; ++i) {
      db_communicator* group = nullptr;
      Error error;
      ASSERT_EQ(self.functions->split(self.communicator, 0, 0, &group, error), DB_OK)
          << error.text.data();
      self.functions->destroy(group);
    }
    EXPECT_EQ(open_descriptors(), with_one);
    expect_sum(3, self);
  });
}

TEST(ShmConnect, Probe_Here_ShowsTheTable) {
  const DistributedBackend* const backend = load_backend();
  ASSERT_NE(backend, nullptr);
  int32_t score = 0;
  char reason[1024] = "";
  ASSERT_EQ(backend->probe(nullptr, &score, reason, sizeof reason), DB_OK);
  EXPECT_GT(score, 0);
  EXPECT_NE(std::string(reason).find("\nup to 2 ranks: every rank reads all up to 64 KiB"),
            std::string::npos)
      << reason;
}

}  // namespace
}  // namespace backend_test
