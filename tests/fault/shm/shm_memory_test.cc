// Memory that the ranks of shm reach (coupler.memory/1): operations on it compared with a naive
// reference, that they need no staging, what happens if there is none to give, and faults.
#include <coupler/memory.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory_limit.h"
#include "ranks/buffer.h"
#include "ranks/faults.h"
#include "ranks/ranks.h"
#include "ranks/reference.h"

namespace backend_test {
namespace {

// Null if the communicator has none.
const db_peer_memory* extension_of(Rank& self) {
  return static_cast<const db_peer_memory*>(
      self.functions->get_extension(self.communicator, DB_PEER_MEMORY));
}

// Memory from the communicator; null if it has none to give, which self.error then says.
std::shared_ptr<void> peer_memory(Rank& self, uint64_t bytes) {
  const db_peer_memory* const extension = extension_of(self);
  void *memory = nullptr, *handle = nullptr;
  self.error.reset();
  if (extension == nullptr ||
      extension->allocate(self.communicator, bytes, &memory, &handle, self.error) != DB_OK)
    return nullptr;
  return {memory, [release = extension->release, handle](void*) { release(handle); }};
}

Job job_in_peer_memory(int32_t size) {
  Job job = job_of(size);
  job.allocate = peer_memory;
  return job;
}

db_option option_of(const char* key, db_option_type type, int64_t value) {
  db_option option{};
  option.struct_size = sizeof option;
  option.key = key;
  option.type = type;
  option.i64 = value;
  option.boolean = static_cast<int32_t>(value);
  return option;
}

const db_option kSmallestChunks = option_of("chunk_bytes", DB_OPTION_I64, 4096);
const db_option kNoPeerMemory = option_of("peer_memory", DB_OPTION_BOOL, 0);

TEST(ShmMemory, Reductions_OnReachableBuffers_MatchTheReference) {
  for (const bool small_chunks : {false, true}) {
    for (int32_t size = 1; size <= 4; ++size) {
      Job job = job_in_peer_memory(size);
      if (small_chunks) job.options = {&kSmallestChunks};
      expect_ranks(job, [&](int32_t rank, Rank& self) {
        for (const uint64_t count : {1, 16384, 16385, 40009})
          check_reductions<float>(self, rank, size, DB_F32, count);
        check_reductions<int32_t>(self, rank, size, DB_I32, 30011);
        check_reductions<uint8_t>(self, rank, size, DB_U8, 100003);
        check_reductions<double>(self, rank, size, DB_F64, 10007);
      });
    }
  }
}

TEST(ShmMemory, Movers_OnReachableBuffers_MatchTheReference) {
  for (int32_t size = 1; size <= 4; ++size) {
    expect_ranks(job_in_peer_memory(size), [&](int32_t rank, Rank& self) {
      for (const uint64_t count : {1, 33, 4099, 70001})
        check_movers(self, rank, size, count, count % 2 == 0);
    });
  }
}

// Every fifth buffer is on the heap, which ones depends on the rank. One of four ranks has mapped
// no arena.
TEST(ShmMemory, SomeBuffersElsewhere_MatchTheReference) {
  for (const int32_t size : {2, 3, 4}) {
    Job job = job_of(size);
    job.allocate = [calls = uint64_t{0}](Rank& self, uint64_t bytes) mutable {
      const auto rank = static_cast<uint64_t>(self.communicator->rank);
      const bool none = ++calls % 5 == rank || rank == 3;
      return none ? nullptr : peer_memory(self, bytes);
    };
    expect_ranks(job, [&](int32_t rank, Rank& self) {
      for (const uint64_t count : {1031, 40009}) {
        check_reductions<float>(self, rank, size, DB_F32, count);
        check_movers(self, rank, size, count, true);
      }
    });
  }
}

// Sums that depend on the order.
TEST(ShmMemory, AllReduce_HasTheBitsOfOtherMemory_OnEveryRank) {
  constexpr uint64_t kCount = 300007;
  expect_ranks(job_in_peer_memory(4), [](int32_t rank, Rank& self) {
    check_same_bits(self, rank, 4, kCount);
    std::vector<float> elsewhere(kCount);
    Buffer<float> here(self, kCount), result(self, kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      elsewhere[i] = here[i] = std::sin(static_cast<float>(i)) / static_cast<float>(rank + 3);
    ASSERT_EQ(self.run(all_reduce(elsewhere.data(), elsewhere.data(), kCount), true), DB_OK);
    ASSERT_EQ(self.run(all_reduce(here.data(), result.data(), kCount), true), DB_OK);
    EXPECT_EQ(std::memcmp(result.data(), elsewhere.data(), kCount * sizeof(float)), 0);
    ASSERT_EQ(self.run(all_reduce(here.data(), here.data(), kCount), true), DB_OK);
    EXPECT_EQ(std::memcmp(here.data(), elsewhere.data(), kCount * sizeof(float)), 0);
  });
}

// How much memory the ranks share, in blocks of 512 bytes; -1 if this process does not share any.
int64_t shared_blocks() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat status {};
    if (target.find("memfd:coupler-shm") != std::string::npos &&
        stat(entry.path().c_str(), &status) == 0)
      return status.st_blocks;
  }
  return -1;
}

TEST(ShmMemory, OperationsOnReachableBuffers_TouchNoStaging) {
  constexpr uint64_t kCount = 1 << 20;
  expect_ranks(job_in_peer_memory(2), [](int32_t rank, Rank& self) {
    Buffer<float> data(self, kCount, 1), half(self, kCount / 2, 1);
    const auto barrier = [&] {
      db_op op{};
      op.kind = DB_BARRIER;
      ASSERT_EQ(self.run(op, true), DB_OK) << self.error.text.data();
    };
    barrier();
    const int64_t before = shared_blocks();
    ASSERT_GE(before, int64_t{2 * (kCount + kCount / 2) * sizeof(float) / 512});
    barrier();
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), kCount), true), DB_OK);
    EXPECT_EQ(data.back(), 2);
    db_op op = all_reduce(data.data(), half.data(), kCount / 2);
    op.kind = DB_REDUCE_SCATTER;
    ASSERT_EQ(self.run(op, true), DB_OK);
    EXPECT_EQ(half.back(), 4);
    op.kind = DB_ALL_GATHER;
    op.reduce = 0;
    op.send = half.data();
    op.recv = data.data();
    ASSERT_EQ(self.run(op, true), DB_OK);
    EXPECT_EQ(data.back(), 4);
    op.kind = DB_BROADCAST;
    op.send = op.recv = data.data();
    op.count = kCount;
    op.root_or_peer = 1;
    ASSERT_EQ(self.run(op, true), DB_OK);
    op = all_reduce(data.data(), data.data(), kCount);
    op.kind = DB_REDUCE;
    op.root_or_peer = 1;
    ASSERT_EQ(self.run(op, true), DB_OK);
    if (rank == 1) {
      EXPECT_EQ(data.back(), 8);
    }
    barrier();
    EXPECT_EQ(shared_blocks(), before);
    barrier();
    // The same elsewhere does, so this test could fail.
    std::vector<float> elsewhere(kCount, 1);
    ASSERT_EQ(self.run(all_reduce(elsewhere.data(), elsewhere.data(), kCount), true), DB_OK);
    barrier();
    EXPECT_GT(shared_blocks(), before);
    barrier();
  });
}

TEST(ShmMemory, Allocations_AreAlignedZeros_ThatAreReusedAndOutliveTheCommunicator) {
  expect_ranks(job_of(2), [](int32_t, Rank& self) {
    constexpr uint64_t kBytes = 100'001;
    std::shared_ptr<void> first = peer_memory(self, kBytes);
    ASSERT_NE(first, nullptr) << self.error.text.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 64, 0u);
    const void* const place = first.get();
    std::memset(first.get(), 7, kBytes);
    first = nullptr;
    first = peer_memory(self, kBytes);
    EXPECT_EQ(first.get(), place);
    const auto* const bytes = static_cast<const uint8_t*>(first.get());
    EXPECT_EQ(std::count(bytes, bytes + kBytes, 0), static_cast<int64_t>(kBytes));
    const std::shared_ptr<void> second = peer_memory(self, 1);
    EXPECT_NE(second.get(), place);
    self.functions->destroy(self.communicator);
    self.communicator = nullptr;
    std::memset(first.get(), 7, kBytes);
    EXPECT_EQ(bytes[kBytes - 1], 7);
    EXPECT_EQ(*static_cast<const uint8_t*>(second.get()), 0);
  });
}

TEST(ShmMemory, NoRoom_IsSaid_AndTheCommunicatorGoesOn) {
  expect_ranks(job_of(2), [](int32_t, Rank& self) {
    EXPECT_EQ(peer_memory(self, uint64_t{1} << 60), nullptr);
    EXPECT_EQ(self.error.error.code, DB_ERR_NO_MEMORY);
    EXPECT_TRUE(contains(self.error, "the arena of this rank, ")) << self.error.text.data();
    EXPECT_TRUE(contains(self.error, " has no room for ")) << self.error.text.data();
    EXPECT_EQ(peer_memory(self, 0), nullptr);
    EXPECT_EQ(self.error.error.code, DB_ERR_INVALID_ARGUMENT);
    std::vector<float> data(100000, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), data.size()), true), DB_OK);
    EXPECT_EQ(data.back(), 2);
    EXPECT_NE(peer_memory(self, 4096), nullptr) << self.error.text.data();
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The kernel ends the rank that asks for more than its control group has. That is all: no rank gets
// a signal for memory that it has, and the others are told whom they lost.
TEST(ShmMemory, NoRoomInTheControlGroup_TheOthersNameThatRank) {
  const coupler::MemoryLimit limit(uint64_t{64} << 20);
  if (!limit.works()) GTEST_SKIP() << "control groups cannot be created here";
  Job job = job_of(3);
  job.prepare = [&](int32_t rank, Job*) {
    if (rank == 1) limit.enter_this_process();
  };
  const std::vector<int> statuses = fork_ranks(job, [](int32_t rank, Rank& self) {
    const std::shared_ptr<void> memory = peer_memory(self, uint64_t{rank == 1 ? 256U : 1U} << 20);
    ASSERT_NE(memory, nullptr) << self.error.text.data();
    auto* const data = static_cast<float*>(memory.get());
    EXPECT_EQ(self.run(all_reduce(data, data, 1 << 18), true), DB_ERR_PEER_LOST);
    EXPECT_EQ(self.error.error.failed_rank, 1) << self.error.text.data();
  });
  for (const size_t rank : {0, 2}) EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL) << statuses[1];
}

// One rank cannot map the arenas.
TEST(ShmMemory, LimitedAddressSpace_OnlyThatRankGetsNone_AndAllGoOn) {
  expect_ranks(job_of(3), [](int32_t rank, Rank& self) {
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    uint64_t pages = 0;
    ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
    limit.rlim_cur = pages * 4096 + (uint64_t{256} << 20);
    if (rank == 1) {
      ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    }
    const std::shared_ptr<void> memory = peer_memory(self, 1 << 20);
    if (rank == 1) {
      EXPECT_EQ(memory, nullptr);
      EXPECT_TRUE(contains(self.error, "raise `ulimit -v`")) << self.error.text.data();
      limit.rlim_cur = limit.rlim_max;
      ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    } else {
      EXPECT_NE(memory, nullptr) << self.error.text.data();
    }
    std::vector<float> heap(1 << 18, 1);
    float* const data = memory == nullptr ? heap.data() : static_cast<float*>(memory.get());
    std::fill(data, data + heap.size(), 1.0f);
    ASSERT_EQ(self.run(all_reduce(data, data, heap.size()), true), DB_OK);
    EXPECT_EQ(data[heap.size() - 1], 3);
  });
}
#endif

// The file of the segment could not have room for arenas.
TEST(ShmMemory, LimitedFileSizeOfRankZero_NoneGivesMemory) {
  Job job = job_of(3);
  job.prepare = [](int32_t rank, Job*) {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = uint64_t{64} << 20;
    if (rank == 0) {
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
  };
  expect_ranks(job, [](int32_t, Rank& self) {
    EXPECT_EQ(extension_of(self), nullptr);
    std::vector<float> data(100000, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), data.size()), true), DB_OK);
    EXPECT_EQ(data.back(), 3);
  });
}

TEST(ShmMemory, OneRankOrOptionOff_NoExtension) {
  for (const int32_t size : {1, 2}) {
    Job job = job_of(size);
    if (size > 1) job.options = {&kNoPeerMemory};
    expect_ranks(job, [](int32_t, Rank& self) { EXPECT_EQ(extension_of(self), nullptr); });
  }
}

// What split makes has arenas of its own; the parent's memory serves it like any other.
TEST(ShmMemory, Split_HasItsOwnMemory) {
  expect_ranks(job_in_peer_memory(2), [](int32_t, Rank& self) {
    const Buffer<float> parents(self, 1 << 18, 1);
    db_communicator* part = nullptr;
    Error error;
    ASSERT_EQ(self.functions->split(self.communicator, 0, 0, &part, error), DB_OK);
    std::swap(self.communicator, part);
    Buffer<float> own(self, 1 << 18, 1), other = parents;
    for (Buffer<float>* const data : {&own, &other}) {
      ASSERT_EQ(self.run(all_reduce(data->data(), data->data(), data->size()), true), DB_OK);
      EXPECT_EQ(data->back(), 2);
    }
    part->functions->destroy(part);
  });
}

TEST(ShmMemory, Kill_EverySurvivorNamesIt) {
  check_kill(job_in_peer_memory(4), 1, 1 << 20, true);
  check_kill(job_in_peer_memory(2), 0, 1 << 18, false);
}
TEST(ShmMemory, RankThatTakesNoPart_IsNamed) {
  check_timeout(job_in_peer_memory(3), true, 1 << 18);
  check_timeout(job_in_peer_memory(3), false, 1 << 18);
}
TEST(ShmMemory, DestroyWithOperationsQueued_Ends) { check_destroy(job_in_peer_memory(2)); }

// Memory whose last page stops the thread that first writes to it, until resume() in any process.
// One at a time.
class Trap {
 public:
  Trap() {
    EXPECT_EQ(pipe(pipe_), 0);
    data_ = static_cast<uint8_t*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(data_ + kBytes - kPage, kPage, PROT_NONE), 0);
    set_ = this;
    struct sigaction action {};
    action.sa_handler = [](int) {
      char byte = 0;
      if (read(set_->pipe_[0], &byte, 1) != 1) _exit(3);
      mprotect(set_->data_ + kBytes - kPage, kPage, PROT_READ | PROT_WRITE);
    };
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~Trap() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(data_, kBytes);
    close(pipe_[0]);
    close(pipe_[1]);
  }
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;

  uint8_t* data() const { return data_; }
  void resume() const { EXPECT_EQ(write(pipe_[1], "", 1), 1); }

  static constexpr uint64_t kBytes = 1 << 20;

 private:
  static constexpr uint64_t kPage = 4096;
  static inline Trap* set_ = nullptr;
  int pipe_[2] = {-1, -1};
  uint8_t* data_ = nullptr;
  struct sigaction before_ {};
};

// Rank 0 gives up while rank 1 reads its memory, and then changes it.
TEST(ShmMemory, SenderThatGaveUp_ReaderFailsToo) {
  const Trap trap;  // inherited by the ranks
  expect_ranks(job_in_peer_memory(2), [&](int32_t rank, Rank& self) {
    Buffer<uint8_t> sent(self, Trap::kBytes, 1);
    db_op op{};
    op.kind = DB_BROADCAST;
    op.dtype = DB_U8;
    op.count = Trap::kBytes;
    op.send = sent.data();
    op.recv = rank == 0 ? sent.data() : trap.data();
    if (rank == 0) {
      op.timeout_ns = 300'000'000;
      EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT) << self.error.text.data();
      EXPECT_EQ(self.error.error.failed_rank, 1);
      std::fill(sent.begin(), sent.end(), uint8_t{9});
      trap.resume();
    } else {
      EXPECT_LT(self.run(op, true), 0) << "it was told that it has received the data";
      EXPECT_TRUE(contains(self.error, "first seen by rank 0")) << self.error.text.data();
    }
  });
}

TEST(ShmMemory, FailedCommunicator_GivesNoMore) {
  expect_ranks(job_in_peer_memory(2), [](int32_t, Rank& self) {
    Buffer<float> data(self, 1 << 18, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), data.size()), true), DB_OK);
    EXPECT_EQ(self.functions->abort(self.communicator), DB_OK);
    EXPECT_EQ(peer_memory(self, 4096), nullptr);
    EXPECT_EQ(self.error.error.code, DB_ERR_ABORTED);
    EXPECT_EQ(data.back(), 2) << "what it gave remains";
  });
}

}  // namespace
}  // namespace backend_test
