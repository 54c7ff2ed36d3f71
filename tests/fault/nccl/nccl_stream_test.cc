// The order between an operation and the streams before and after it, and messages that are never
// waited for.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "nccl_job.h"

namespace backend_test {
namespace {

// A stream of the double.
class Stream {
 public:
  Stream() {
    create_(&stream, 0, 0);
    made_(&event_, 0);
  }
  void copy(void* to, const void* from, size_t bytes) {
    copy_(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  void synchronize() {
    record_(event_, stream);
    while (query_(event_) == cudaErrorNotReady)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cudaStream_t stream = nullptr;

 private:
  template <typename F>
  static F* function(const char* name) {
    return cuda_function<F>(name);
  }
  using Create = cudaError_t(cudaStream_t*, unsigned int, int);
  using Copy = cudaError_t(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
  Create* create_ = function<Create>("cudaStreamCreateWithPriority");
  Copy* copy_ = function<Copy>("cudaMemcpyAsync");
  using Made = cudaError_t(cudaEvent_t*, unsigned int);
  Made* made_ = function<Made>("cudaEventCreateWithFlags");
  using Record = cudaError_t(cudaEvent_t, cudaStream_t);
  Record* record_ = function<Record>("cudaEventRecord");
  using Query = cudaError_t(cudaEvent_t);
  Query* query_ = function<Query>("cudaEventQuery");
  cudaEvent_t event_ = nullptr;
};

db_request* start(Rank& self, db_op op, void* stream) {
  op.struct_size = sizeof op;
  op.memory = DB_MEMORY_CUDA;
  op.stream = stream;
  db_request* request = nullptr;
  EXPECT_EQ(self.functions->submit(self.communicator, &op, &request, self.error), DB_IN_PROGRESS)
      << self.error.text.data();
  return request;
}

TEST(NcclStream, WaitStream_OrdersALaterStreamAndDoesNotWaitItself) {
  constexpr size_t kCount = 50'000;
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(kCount, 1), copy(kCount);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), kCount), true), DB_OK);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    db_request* request = start(self, all_reduce(data.data(), data.data(), kCount), nullptr);
    Stream later;
    EXPECT_EQ(self.functions->wait_stream(request, later.stream, self.error), DB_OK);
    later.copy(copy.data(), data.data(), kCount * sizeof(float));
    if (rank == 0) {
      EXPECT_EQ(self.functions->test(request, self.error), DB_IN_PROGRESS);
    }
    later.synchronize();
    EXPECT_EQ(copy, std::vector<float>(kCount, 4));
    EXPECT_EQ(self.functions->wait_host(request, -1, self.error), DB_OK);
    self.functions->release(request);
  });
}

TEST(NcclStream, Submit_WaitsForTheStreamThatProducesTheData) {
  constexpr size_t kCount = 1 << 20;
  expect_ranks(nccl_job(2), [&](int32_t, Rank& self) {
    std::vector<float> data(kCount, 0), source(kCount, 3);
    Stream before;
    for (int i = 0; i < 20; ++i) before.copy(data.data(), source.data(), kCount * sizeof(float));
    db_request* request = start(self, all_reduce(data.data(), data.data(), kCount), before.stream);
    EXPECT_EQ(self.functions->wait_host(request, -1, self.error), DB_OK);
    self.functions->release(request);
    EXPECT_EQ(data, std::vector<float>(kCount, 6));
  });
}

TEST(NcclStream, WaitWithAShortTimeout_LeavesTheOperationAlone) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(100, 1);
    ASSERT_EQ(self.run(all_reduce(data.data(), data.data(), 100), true), DB_OK);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    db_request* request = start(self, all_reduce(data.data(), data.data(), 100), nullptr);
    if (rank == 0) {
      EXPECT_EQ(self.functions->wait_host(request, 20'000'000, self.error), DB_ERR_TIMEOUT);
      EXPECT_TRUE(contains(self.error, "it continues")) << self.error.text.data();
    }
    EXPECT_EQ(self.functions->wait_host(request, -1, self.error), DB_OK);
    self.functions->release(request);
    EXPECT_EQ(data[99], 4);
  });
}

db_op message(bool sends, float* data, uint64_t count, int32_t peer) {
  db_op op = all_reduce(data, data, count);
  op.kind = sends ? DB_SEND : DB_RECV;
  op.reduce = 0;
  op.root_or_peer = peer;
  return op;
}

// Both sides receive first: with a separate group for each operation they would wait forever.
TEST(NcclStream, ReceivesBeforeSends_GoTogether) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> in(1000), out(1000, static_cast<float>(rank + 1));
    db_request* receiving = start(self, message(false, in.data(), 1000, 1 - rank), nullptr);
    db_request* sending = start(self, message(true, out.data(), 1000, 1 - rank), nullptr);
    for (db_request* request : {receiving, sending}) {
      EXPECT_EQ(self.functions->wait_host(request, -1, self.error), DB_OK);
      self.functions->release(request);
    }
    EXPECT_EQ(in, std::vector<float>(1000, static_cast<float>(2 - rank)));
  });
}

TEST(NcclStream, SendThatNobodyWaitsFor_ArrivesAllTheSame) {
  expect_ranks(nccl_job(2), [&](int32_t rank, Rank& self) {
    std::vector<float> data(1000, rank == 0 ? 7.0f : 0.0f);
    db_request* request = start(self, message(rank == 0, data.data(), 1000, 1 - rank), nullptr);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_EQ(self.functions->wait_host(request, rank == 0 ? 0 : 20'000'000'000, self.error), DB_OK)
        << self.error.text.data();
    self.functions->release(request);
    EXPECT_EQ(data, std::vector<float>(1000, 7));
  });
}

TEST(NcclStream, RequestReleasedAtOnce_StillHappens) {
  expect_ranks(nccl_job(2), [&](int32_t, Rank& self) {
    std::vector<float> data(1000, 1);
    for (int step = 0; step < 50; ++step)
      self.functions->release(start(self, all_reduce(data.data(), data.data(), 1000), nullptr));
    EXPECT_EQ(self.run(all_reduce(data.data(), data.data(), 1000), true), DB_OK);
    // 2 to the power of 51, which float represents exactly.
    EXPECT_EQ(data[0], 2251799813685248.0f);
  });
}

}  // namespace
}  // namespace backend_test
