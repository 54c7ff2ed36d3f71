// OpQueue functions for the communicator as a whole: split, shrink, and registering buffers. All
// of them are [comm-serial] and wait without the lock.
#include <string>
#include <utility>

#include "nccl/failures.h"
#include "nccl/library.h"
#include "nccl/op_queue.h"

namespace db::nccl {
namespace {

Failure late(const char* what, int64_t timeout_ns) {
  return Failure::make(DB_ERR_TIMEOUT,
                       std::string("nccl: ") + what + " has not completed after " +
                           std::to_string(timeout_ns / 1'000'000) + " ms: a rank is missing",
                       DB_ERROR_COMM_DEAD);
}

}  // namespace

// Waits while busy(); false: the deadline has passed.
template <class Busy>
bool OpQueue::wait_while(Lock& lock, int64_t deadline_ns, const Busy& busy) {
  const int64_t began = now_ns();
  while (busy()) {
    if (now_ns() > deadline_ns) return false;
    lock.unlock();
    pause_since(began);
    lock.lock();
  }
  return true;
}

// Waits until everything submitted has completed.
Failure OpQueue::drain(Lock& lock, const char* what, int64_t deadline_ns, int64_t timeout_ns) {
  const bool in_time = wait_while(lock, deadline_ns, [&] {
    flush();
    advance();
    sweep();
    return !failed_ && first_ != nullptr;
  });
  if (!in_time) fail_locked(late(what, timeout_ns));
  return failed_ ? failure_ : Failure{};
}

// Waits until NCCL has created child_; state is the result of the call. A result of ncclSuccess
// does not mean that the child exists: ncclCommSplit and ncclCommShrink of NCCL 2.28 return it
// where ncclInProgress is meant. The parent's state tells.
Failure OpQueue::finish_child(Lock& lock, const char* what, ncclResult_t state, int64_t deadline_ns,
                              int64_t timeout_ns) {
  const bool in_time = wait_while(lock, deadline_ns, [&] {
    if (failed_ && !shrinking_) return false;
    if (state == ncclSuccess || state == ncclInProgress) state = state_of(context_.comm);
    return state == ncclInProgress;
  });
  Failure failure;
  if (failed_ && !shrinking_) {
    failure = failure_;
  } else if (!in_time) {
    failure = late(what, timeout_ns);
  } else if (state != ncclSuccess) {
    failure = nccl_failure(state, context_.comm, what);
  }
  if (!failure.ok()) fail_locked(failure);
  return failure;
}

Failure OpQueue::split(int32_t color, int32_t key, int64_t timeout_ns, ncclComm_t* child) {
  const int64_t deadline_ns = deadline_after(timeout_ns);
  Lock lock(mutex_);
  Failure failure = drain(lock, "split", deadline_ns, timeout_ns);
  if (!failure.ok()) return failure;
  *child_ = nullptr;
  ncclConfig_t config = make_config(settings_);
  const OnDevice on_device(device_);
  const ncclResult_t state = nccl().CommSplit(context_.comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color,
                                              key, child_.get(), &config);
  failure = finish_child(lock, "split", state, deadline_ns, timeout_ns);
  if (failure.ok()) *child = std::exchange(*child_, nullptr);
  return failure;
}

Failure OpQueue::shrink(std::vector<int> excluded, bool aborts, int64_t timeout_ns,
                        ncclComm_t* child) {
  const int64_t deadline_ns = deadline_after(timeout_ns);
  Lock lock(mutex_);
  if (failed_) return failure_;
  if (aborts) {
    // From here on no operation counts as completed: NCCL may stop the GPU halfway.
    shrinking_ = true;
    fail_locked(Failure::make(DB_ERR_ABORTED, "nccl: shrink canceled pending operations"));
  } else if (Failure failure = drain(lock, "shrink", deadline_ns, timeout_ns); !failure.ok()) {
    return failure;
  }
  *child_ = nullptr;
  ncclConfig_t config = make_config(settings_);
  const OnDevice on_device(device_);
  // It waits for the GPU to stop operations in flight; without the lock, so that waiters can end.
  if (aborts) lock.unlock();
  const ncclResult_t state =
      nccl().CommShrink(context_.comm, excluded.data(), static_cast<int>(excluded.size()),
                        child_.get(), &config, aborts ? kShrinkAbort : kShrinkDefault);
  if (aborts) lock.lock();
  Failure failure = finish_child(lock, "shrink", state, deadline_ns, timeout_ns);
  shrinking_ = false;
  wake_.notify_all();
  if (failure.ok()) *child = std::exchange(*child_, nullptr);
  return failure;
}

// Waits until NCCL may be called.
Failure OpQueue::settle(Lock& lock, int64_t deadline_ns) {
  const bool in_time = wait_while(lock, deadline_ns, [&] {
    advance();
    sweep();
    return !failed_ && !launching_.empty();
  });
  if (failed_) return failure_;
  return in_time ? Failure{}
                 : Failure::make(DB_ERR_TIMEOUT,
                                 "nccl: an operation is still being handed over to NCCL",
                                 DB_ERROR_RETRYABLE);
}

Failure OpQueue::register_buffer(void* buffer, uint64_t bytes, int64_t timeout_ns, void** handle) {
  Lock lock(mutex_);
  Failure failure = settle(lock, deadline_after(timeout_ns));
  if (!failure.ok()) return failure;
  const OnDevice on_device(device_);
  const ncclResult_t result = nccl().CommRegister(context_.comm, buffer, bytes, handle);
  if (result == ncclSuccess) return {};
  failure = nccl_failure(result, context_.comm, "registering " + std::to_string(bytes) + " bytes");
  failure.flags = 0;  // not fatal: everything works without registration
  return failure;
}

Failure OpQueue::deregister_buffer(void* handle, int64_t timeout_ns) {
  Lock lock(mutex_);
  Failure failure = settle(lock, deadline_after(timeout_ns));
  if (failed_) return {};  // ncclCommAbort ends all registrations
  if (!failure.ok()) return failure;
  const OnDevice on_device(device_);
  const ncclResult_t result = nccl().CommDeregister(context_.comm, handle);
  if (result == ncclSuccess) return {};
  failure = nccl_failure(result, context_.comm, "ending a registration");
  failure.flags = 0;
  return failure;
}

}  // namespace db::nccl
