// Operations on device memory over a backend for host memory.
#include "comm/staging.h"

#include <array>
#include <cstring>
#include <numeric>

#include "ranks.h"

namespace coupler::comm {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder

// A device whose memory can be accessed only through its own copies.
class OtherMemory final : public DeviceMemory {
 public:
  template <class T>
  static T* on_device(T* memory) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(memory) | kMark);  // NOLINT: on purpose
  }
  int index() const override { return 0; }
  bool is_cuda() const override { return false; }
  void* stream() const override { return nullptr; }
  std::shared_ptr<void> host_buffer(size_t bytes) const override {
    return {std::malloc(bytes), &std::free};
  }
  void copy_to_host(void* host, const void* device, size_t bytes) const override {
    std::memcpy(host, in_reach(device), bytes);
  }
  void copy_from_host(void* device, const std::shared_ptr<void>& host,
                      size_t bytes) const override {
    std::memcpy(in_reach(device), host.get(), bytes);
  }
  void copy(void* to, const void* from, size_t bytes) const override {
    std::memcpy(in_reach(to), in_reach(from), bytes);
  }

 private:
  static constexpr uintptr_t kMark = uintptr_t{1} << 62;
  static void* in_reach(const void* device) {
    const auto address = reinterpret_cast<uintptr_t>(device);
    EXPECT_NE(address & kMark, 0U) << "host memory was passed as device memory";
    return reinterpret_cast<void*>(address & ~kMark);  // NOLINT: it was a pointer
  }
};

db_op on_device(db_op op) {
  op.send = OtherMemory::on_device(op.send);
  op.recv = OtherMemory::on_device(op.recv);
  op.memory = DB_MEMORY_CUDA;
  return op;
}

std::shared_ptr<Communicator> communicator_of(const RankSetup& setup) {
  CommunicatorOptions options = options_of(setup);
  options.device = std::make_shared<OtherMemory>();
  return Communicator::create(options);
}

struct Extent {
  const char* what;
  db_kind kind;
  int root;
  uint64_t send, recv;
};

TEST(Staging_ExtentOf_EveryKind, IsWhatTheInterfaceSays) {
  constexpr int kRank = 1, kWorldSize = 3;
  const std::array<uint64_t, kWorldSize> to = {2, 3, 4}, from = {5, 6, 7};
  const std::vector<Extent> table = {
      {"all_reduce", DB_ALL_REDUCE, 0, 10, 10},
      {"broadcast, root", DB_BROADCAST, kRank, 10, 10},
      {"broadcast", DB_BROADCAST, 0, 0, 10},
      {"reduce, root", DB_REDUCE, kRank, 10, 10},
      {"reduce", DB_REDUCE, 0, 10, 0},
      {"all_gather", DB_ALL_GATHER, 0, 10, 30},
      {"all_gather_v", DB_ALL_GATHER_V, 0, 6, 18},
      {"reduce_scatter", DB_REDUCE_SCATTER, 0, 30, 10},
      {"reduce_scatter_v", DB_REDUCE_SCATTER_V, 0, 18, 6},
      {"all_to_all", DB_ALL_TO_ALL, 0, 30, 30},
      {"all_to_all_v", DB_ALL_TO_ALL_V, 0, 9, 18},
      {"gather, root", DB_GATHER, kRank, 10, 30},
      {"gather", DB_GATHER, 0, 10, 0},
      {"scatter, root", DB_SCATTER, kRank, 30, 10},
      {"scatter", DB_SCATTER, 0, 0, 10},
      {"barrier", DB_BARRIER, 0, 0, 0},
      {"send", DB_SEND, 0, 10, 0},
      {"recv", DB_RECV, 0, 0, 10},
  };
  for (const Extent& expected : table) {
    db_op op{};
    op.kind = expected.kind;
    op.root_or_peer = expected.root;
    op.count = 10;
    op.send_counts = to.data();
    op.recv_counts = from.data();
    const OperationExtent extent = extent_of(op, kRank, kWorldSize);
    EXPECT_EQ(extent.send, expected.send) << expected.what;
    EXPECT_EQ(extent.recv, expected.recv) << expected.what;
  }
}

TEST(Staging, RunAndSubmit_OverABackendOfHostMemory_GoThroughTheHost) {
  auto store = std::make_shared<store::MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto c = communicator_of(setup_of(rank, 3, store));
      std::vector<float> in_place(5, 1.0f), from(4, 2.0f), to(4);
      c->run(on_device(all_reduce(in_place)));
      EXPECT_EQ(in_place, std::vector<float>(5, 3.0f));
      db_op op = all_reduce(from);
      op.recv = to.data();
      c->submit(on_device(op)).wait();
      EXPECT_EQ(to, std::vector<float>(4, 6.0f));
      EXPECT_EQ(from, std::vector<float>(4, 2.0f));
      std::vector<float> on_host(2, 1.0f);
      c->run(all_reduce(on_host));  // host memory is not staged
      EXPECT_EQ(on_host, std::vector<float>(2, 3.0f));
      EXPECT_TRUE(c->supports(on_device(all_reduce(to))));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Staging, WorldOfOne_IsACopyOnTheDevice) {
  config::BackendConfig backend;
  const auto c = Communicator::create({.plugin = plugin::Plugin::single(),
                                       .process = {},
                                       .store = nullptr,
                                       .backend = &backend,
                                       .device = std::make_shared<OtherMemory>()});
  std::vector<float> from = {1, 2, 3}, to(3);
  db_op gather = all_reduce(from);
  gather.kind = DB_ALL_GATHER;
  gather.reduce = 0;
  gather.recv = to.data();
  c->run(on_device(gather));
  EXPECT_EQ(to, from);
  c->submit(on_device(all_reduce(to))).wait();
  EXPECT_EQ(to, from);
  db_op scaled = all_reduce(to);
  scaled.reduce = DB_PREMUL_SUM;
  scaled.scale = 2;
  c->run(on_device(scaled));  // needs more than a copy
  EXPECT_EQ(to, (std::vector<float>{2, 4, 6}));
}

TEST(Staging, Split_KeepsTheDevice) {
  auto store = std::make_shared<store::MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto part = communicator_of(setup_of(rank, 2, store))->split(0, rank, "part");
      std::vector<float> values(3, 1.0f);
      part->run(on_device(all_reduce(values)));
      EXPECT_EQ(values, std::vector<float>(3, 2.0f));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace coupler::comm
