// The watcher of a queue: whatever must happen while no thread calls.
#include <algorithm>
#include <chrono>
#include <string>

#include "nccl/device.h"
#include "nccl/failures.h"
#include "nccl/library.h"
#include "nccl/op_queue.h"
#include "nccl/request.h"

namespace db::nccl {
namespace {

// Its periods: while operations are launching, while operations are in flight, and otherwise, so
// that an asynchronous error becomes a failure well within a second.
constexpr auto kHandOver = std::chrono::microseconds(500);
constexpr auto kBusy = std::chrono::milliseconds(50);
constexpr auto kIdle = std::chrono::milliseconds(500);
// How long messages that no caller waits for are held.
constexpr int64_t kHoldNs = 100'000'000;

}  // namespace

void OpQueue::fail(const Failure& failure) {
  const Lock lock(mutex_);
  fail_locked(failure);
}

void OpQueue::fail_locked(const Failure& failure) {
  if (failed_) return;
  failed_ = true;
  failure_ = failure;
  failure_.flags |= DB_ERROR_COMM_DEAD;
  give_up_ns_ = now_ns() + kAbortLimitNs;
  wake_.notify_all();
}

void OpQueue::time_out(const Op& op) {
  fail_locked(Failure::make(
      DB_ERR_TIMEOUT, "nccl: " + describe(op) + " has not completed after " +
                          std::to_string(op.timeout_ns / 1'000'000) +
                          " ms, its timeout: another rank did not join it, is stopped or is gone"));
}

void OpQueue::check_deadlines(int64_t now) {
  for (const Request* request = first_; request != nullptr; request = request->next)
    if (now > request->op.deadline_ns) return time_out(request->op);
}

void OpQueue::check_async_error() {
  if (failed_ || !launching_.empty()) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl().CommGetAsyncError(context_.comm, &state);
  if (result != ncclSuccess) state = result;
  if (state == ncclSuccess || state == ncclInProgress) return;  // the latter: split() is running
  const std::string where =
      first_ != nullptr ? " during " + describe(first_->op) : " between operations";
  fail_locked(nccl_failure(state, context_.comm, "asynchronous error" + where));
}

// Stops the GPU, so that buffers are free again, then ends the waits.
void OpQueue::reap(Lock& lock) {
  const ncclComm_t comm = context_.comm;
  context_.comm = nullptr;
  lock.unlock();
  const bool clean = abort_communicator(comm);
  lock.lock();
  clean_ = clean;
  reaped_ = true;
  end_all();
}

void OpQueue::watch() {
  const OnDevice on_device(device_);
  Lock lock(mutex_);
  const auto is_to_reap = [&] { return failed_ && !shrinking_ && context_.comm != nullptr; };
  for (;;) {
    if (is_to_reap()) reap(lock);
    if (stop_) return;
    const int64_t now = now_ns();
    if (next_ != nullptr && now - next_->submitted_ns > kHoldNs) flush();
    advance();
    sweep();
    if (!failed_) check_deadlines(now);
    if (context_.comm != nullptr) check_async_error();
    if (is_to_reap()) continue;
    const bool held = next_ != nullptr && next_->op.sequence > flush_to_;
    idle_ = first_ == nullptr;
    if (idle_) {
      wake_.wait_for(lock, kIdle);
    } else {
      const bool handing_over = !launching_.empty() || (next_ != nullptr && !held);
      wake_.wait_for(lock, handing_over ? std::chrono::nanoseconds(kHandOver)
                                        : std::chrono::nanoseconds(kBusy));
    }
    idle_ = false;
  }
}

}  // namespace db::nccl
