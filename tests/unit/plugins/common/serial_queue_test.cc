// The queue that makes transports asynchronous, over an executor that records its calls.
#include "common/serial_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace db {
namespace {

using std::chrono::milliseconds;

// Runs operations by their tag; point-to-point ones complete when allowed() reaches their count.
class Recorder final : public Executor {
 public:
  Failure execute(Op& op) override {
    EXPECT_FALSE(inside.exchange(true)) << "two operations at once";
    order.push_back(op.sequence);
    runner = std::this_thread::get_id();
    while (held && op.kind == DB_BARRIER) std::this_thread::sleep_for(milliseconds(1));
    inside = false;
    if (op.sequence == fail_at)
      return Failure::make(DB_ERR_PEER_LOST, "rank 1 is gone", dead ? DB_ERROR_COMM_DEAD : 0, 1);
    return {is_point_to_point(op.kind) ? DB_IN_PROGRESS : DB_OK};
  }
  Failure poll(Op& op) override {
    EXPECT_FALSE(inside.exchange(true)) << "two operations at once";
    inside = false;
    return {allowed >= op.count ? DB_OK : DB_IN_PROGRESS};
  }
  void cancel(Op&) override { ++canceled; }

  std::vector<uint64_t> order;
  std::thread::id runner;
  std::atomic<bool> inside{false}, held{false};
  std::atomic<uint64_t> allowed{0};
  std::atomic<int> canceled{0};
  uint64_t fail_at = 0;
  bool dead = true;
};

Op barrier_op(bool blocking = false) {
  Op op;
  op.kind = DB_BARRIER;
  op.blocking = blocking;
  op.timeout_ns = 10'000'000'000;
  op.deadline_ns = now_ns() + op.timeout_ns;
  return op;
}

Op receive(uint64_t when, bool blocking = false) {
  Op op = barrier_op(blocking);
  op.kind = DB_RECV;
  op.count = when;
  return op;
}

db_request* start(SerialQueue* queue, Op op) {
  db_request* request = nullptr;
  EXPECT_EQ(queue->submit(op, &request, nullptr), DB_IN_PROGRESS);
  return request;
}

TEST(SerialQueue_BlockingOnEmptyQueue_RunsOnTheCaller, WithoutARequest) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  Op op = barrier_op(true);
  db_request* request = nullptr;
  EXPECT_EQ(queue.submit(op, &request, nullptr), DB_OK);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(recorder.runner, std::this_thread::get_id());
}

TEST(SerialQueue_BlockingAfterAsynchronous_KeepsTheOrder, Always) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  std::vector<db_request*> requests;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 5; ++i) requests.push_back(start(&queue, barrier_op()));
    Op op = barrier_op(true);
    db_request* request = nullptr;
    ASSERT_EQ(queue.submit(op, &request, nullptr), DB_OK);
  }
  for (db_request* request : requests) {
    EXPECT_EQ(SerialQueue::test(request, nullptr), DB_OK);
    SerialQueue::release(request);
  }
  ASSERT_EQ(recorder.order.size(), 300u);
  for (size_t i = 0; i < recorder.order.size(); ++i) EXPECT_EQ(recorder.order[i], i + 1);
}

TEST(SerialQueue_ManyWaiters_AllSeeTheirOperationDone, InOrder) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  for (int round = 0; round < 100; ++round) {
    std::vector<db_request*> requests;
    std::vector<std::thread> waiters;
    for (int i = 0; i < 8; ++i) requests.push_back(start(&queue, barrier_op()));
    for (int i = 0; i < 4; ++i)
      waiters.emplace_back([&, i] {
        for (const int at : {7 - i, i}) {
          EXPECT_EQ(SerialQueue::wait(requests[static_cast<size_t>(at)], -1, nullptr), DB_OK);
          SerialQueue::release(requests[static_cast<size_t>(at)]);
        }
      });
    for (std::thread& waiter : waiters) waiter.join();
  }
  for (size_t i = 0; i < recorder.order.size(); ++i) EXPECT_EQ(recorder.order[i], i + 1);
}

TEST(SerialQueue_ReleasedBeforeDone_StillRuns, AndItsMemoryIsUsedAgain) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  db_request* last = nullptr;
  for (int i = 0; i < 200; ++i) {
    last = start(&queue, barrier_op());
    if (i < 199) SerialQueue::release(last);
  }
  EXPECT_EQ(SerialQueue::wait(last, -1, nullptr), DB_OK);
  SerialQueue::release(last);
  EXPECT_EQ(recorder.order.size(), 200u);
  EXPECT_EQ(start(&queue, barrier_op()), last);  // the last released one
}

TEST(SerialQueue_NobodyWaits_TheWorkerRunsIt, Soon) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  db_request* const request = start(&queue, barrier_op());
  const int64_t end = now_ns() + 10'000'000'000;
  while (SerialQueue::test(request, nullptr) == DB_IN_PROGRESS && now_ns() < end)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(SerialQueue::test(request, nullptr), DB_OK);
  EXPECT_NE(recorder.runner, std::this_thread::get_id());
  SerialQueue::release(request);
}

TEST(SerialQueue_WaitWithShortTimeout_ReturnsWithoutHarm, AndTheOperationGoesOn) {
  Recorder recorder;
  recorder.held = true;
  SerialQueue queue(&recorder, 1);
  db_request* const request = start(&queue, barrier_op());
  EXPECT_EQ(SerialQueue::wait(request, 20'000'000, nullptr), DB_ERR_TIMEOUT);
  recorder.held = false;
  EXPECT_EQ(SerialQueue::wait(request, -1, nullptr), DB_OK);
  SerialQueue::release(request);
  EXPECT_FALSE(queue.failed());
}

TEST(SerialQueue_FatalError_EndsWhatIsQueued, AndEverythingLater) {
  Recorder recorder;
  recorder.held = true;
  recorder.fail_at = 2;
  SerialQueue queue(&recorder, 1);
  db_request* const first = start(&queue, barrier_op());
  db_request* const second = start(&queue, barrier_op());
  db_request* const third = start(&queue, barrier_op());
  recorder.held = false;
  char text[200];
  db_error error{sizeof(db_error), 0, 0, 0, 0, text, sizeof(text)};
  EXPECT_EQ(SerialQueue::wait(first, -1, nullptr), DB_OK);
  EXPECT_EQ(SerialQueue::wait(second, -1, &error), DB_ERR_PEER_LOST);
  EXPECT_EQ(error.failed_rank, 1);
  EXPECT_EQ(SerialQueue::wait(third, -1, &error), DB_ERR_ABORTED);
  EXPECT_STREQ(text, "not started: rank 1 is gone");
  EXPECT_EQ(queue.async_error(&error), DB_ERR_PEER_LOST);
  Op op = barrier_op(true);
  db_request* none = nullptr;
  EXPECT_EQ(queue.submit(op, &none, &error), DB_ERR_ABORTED);
  EXPECT_EQ(recorder.order.size(), 2u);
  for (db_request* request : {first, second, third}) SerialQueue::release(request);
}

TEST(SerialQueue_HarmlessError_EndsOneOperation, AndNoOther) {
  Recorder recorder;
  recorder.fail_at = 1;
  recorder.dead = false;
  SerialQueue queue(&recorder, 1);
  db_request* const first = start(&queue, barrier_op());
  db_request* const second = start(&queue, barrier_op());
  EXPECT_EQ(SerialQueue::wait(second, -1, nullptr), DB_OK);
  EXPECT_EQ(SerialQueue::wait(first, -1, nullptr), DB_ERR_PEER_LOST);
  EXPECT_EQ(queue.async_error(nullptr), DB_OK);
  SerialQueue::release(first);
  SerialQueue::release(second);
}

TEST(SerialQueue_StartedReceive_LetsLaterOperationsPass, AndFinishesWhenItsDataComes) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  db_request* const early = start(&queue, receive(1));
  db_request* const later = start(&queue, barrier_op());
  EXPECT_EQ(SerialQueue::wait(later, -1, nullptr), DB_OK);
  EXPECT_EQ(SerialQueue::wait(early, 5'000'000, nullptr), DB_ERR_TIMEOUT);
  recorder.allowed = 1;
  EXPECT_EQ(SerialQueue::wait(early, -1, nullptr), DB_OK);
  Op op = receive(2, true);
  std::thread sender([&] {
    std::this_thread::sleep_for(milliseconds(5));
    recorder.allowed = 2;
  });
  db_request* none = nullptr;
  EXPECT_EQ(queue.submit(op, &none, nullptr), DB_OK);
  sender.join();
  SerialQueue::release(early);
  SerialQueue::release(later);
}

TEST(SerialQueue_Abort_EndsEveryWait, FromAnyThread) {
  for (int round = 0; round < 30; ++round) {
    Recorder recorder;
    SerialQueue queue(&recorder, 1);
    std::vector<db_request*> requests;
    for (int i = 0; i < 6; ++i)
      requests.push_back(start(&queue, i % 2 == 0 ? receive(9) : barrier_op()));
    std::thread waiter(
        [&] { EXPECT_EQ(SerialQueue::wait(requests[0], -1, nullptr), DB_ERR_ABORTED); });
    std::thread killer([&] { queue.abort(); });
    EXPECT_EQ(SerialQueue::wait(requests[4], -1, nullptr), DB_ERR_ABORTED);
    waiter.join();
    killer.join();
    for (db_request* request : requests) {
      SerialQueue::wait(request, -1, nullptr);
      SerialQueue::release(request);
    }
    EXPECT_EQ(queue.async_error(nullptr), DB_ERR_ABORTED);
  }
}

TEST(SerialQueue_DestroyedWithPendingOperations_Joins, AndGivesThemUp) {
  Recorder recorder;
  {
    SerialQueue queue(&recorder, 1);
    for (int i = 0; i < 3; ++i) SerialQueue::release(start(&queue, receive(9)));
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_LE(recorder.canceled, 3);
  EXPECT_EQ(static_cast<size_t>(recorder.canceled.load()), recorder.order.size());
}

TEST(SerialQueue_Drain_RunsWhatIsQueued, OnTheCaller) {
  Recorder recorder;
  SerialQueue queue(&recorder, 1);
  std::vector<db_request*> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(start(&queue, barrier_op()));
  EXPECT_EQ(queue.drain(nullptr), DB_OK);
  for (db_request* request : requests) {
    EXPECT_EQ(SerialQueue::test(request, nullptr), DB_OK);
    SerialQueue::release(request);
  }
}

}  // namespace
}  // namespace db
