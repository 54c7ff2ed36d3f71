#include "nccl/op_queue.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "common/thread.h"
#include "nccl/failures.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

// How long submit polls whether NCCL has launched an operation before it leaves that to others.
constexpr int64_t kLaunchSpinNs = 100'000;
// How many operations may be on the stream. CUDA's queue has about a thousand entries, of which an
// operation takes three or four; a thread that finds it full waits in CUDA, beyond any deadline.
constexpr int kMaxLaunched = 200;
// How long a waiter polls before it sleeps, and its shortest and longest sleep.
constexpr int64_t kWaitSpinNs = 50'000;
constexpr int64_t kMinSleepNs = 20'000, kMaxSleepNs = 500'000;

void sleep_for_ns(int64_t ns) {
  const timespec time = {0, ns};
  nanosleep(&time, nullptr);
}

// The watcher's periods: while operations are launching, while operations are in flight, and
// otherwise, so that an asynchronous error becomes a failure well within a second.
constexpr auto kHandOver = std::chrono::microseconds(500);
constexpr auto kBusy = std::chrono::milliseconds(50);
constexpr auto kIdle = std::chrono::milliseconds(500);
// How long nothing must have been submitted for the last of these. A submit wakes an idle watcher,
// which costs more than the submit itself and must not happen for each of a series.
constexpr int64_t kCalmNs = 1'000'000'000;
// How long messages that no caller waits for are held.
constexpr int64_t kHoldNs = 100'000'000;

}  // namespace

void pause_since(int64_t began_ns) {
  const int64_t waited = now_ns() - began_ns;
  if (waited < kWaitSpinNs) {
    sched_yield();
  } else {
    sleep_for_ns(std::clamp(waited / 8, kMinSleepNs, kMaxSleepNs));
  }
}

OpQueue::OpQueue(ncclComm_t comm, int device) : device_(device) { context_.comm = comm; }

Failure OpQueue::create(ncclComm_t comm, int device, const Settings& settings,
                        std::unique_ptr<OpQueue>* result) {
  std::unique_ptr<OpQueue> made(new OpQueue(comm, device));
  Failure failure = made->open(settings);
  if (failure.ok()) *result = std::move(made);
  return failure;
}

Failure OpQueue::open(const Settings& settings) {
  settings_ = settings;
  const OnDevice on_device(device_);
  for (const ncclResult_t result : {nccl().CommUserRank(context_.comm, &context_.rank),
                                    nccl().CommCount(context_.comm, &context_.size)})
    if (result != ncclSuccess)
      return nccl_failure(result, context_.comm, "creating a communicator");
  int lowest = 0, highest = 0;
  cudaError_t error = cuda().DeviceGetStreamPriorityRange(&lowest, &highest);
  if (error == cudaSuccess)
    error = cuda().StreamCreateWithPriority(&context_.stream, cudaStreamNonBlocking,
                                            settings.high_priority ? highest : lowest);
  if (error == cudaSuccess)
    error = cuda().MallocAsync(&context_.token, sizeof(int32_t), context_.stream);
  if (error == cudaSuccess)
    error = cuda().MemsetAsync(context_.token, 0, sizeof(int32_t), context_.stream);
  if (error != cudaSuccess) return cuda_failure(error, "creating a communicator");
  watcher_ = start_thread([this] { watch(); });
  return {};
}

OpQueue::~OpQueue() {
  {
    const Lock lock(mutex_);
    sweep();
    if (first_ != nullptr)
      fail_locked(
          Failure::make(DB_ERR_ABORTED, "the communicator was destroyed", DB_ERROR_COMM_DEAD));
    stop_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  const OnDevice on_device(device_);
  if (context_.comm != nullptr) clean_ = close_communicator(context_.comm);
  for (const auto& request : all_) {
    if (request->ready != nullptr) cuda().EventDestroy(request->ready);
    if (request->done != nullptr) cuda().EventDestroy(request->done);
  }
  if (!clean_) {
    static_cast<void>(child_.release());  // NCCL may still write there
  } else if (*child_ != nullptr) {        // half made by a split or shrink that failed
    abort_communicator(*child_);
  }
  if (!clean_ || context_.stream == nullptr) return;
  if (context_.token != nullptr) cuda().FreeAsync(context_.token, context_.stream);
  cuda().StreamDestroy(context_.stream);
}

// ---- Requests ----

OpQueue::Request* OpQueue::take() {
  if (!free_.empty()) {
    Request* const request = free_.back();
    free_.pop_back();
    return request;
  }
  auto made = std::make_unique<Request>();
  made->owner = this;
  free_.reserve(all_.size() + 1);
  all_.push_back(std::move(made));
  Request& request = *all_.back();
  for (cudaEvent_t* const event : {&request.ready, &request.done}) {
    if (cuda().EventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess) continue;
    if (request.ready != nullptr) cuda().EventDestroy(request.ready);
    all_.pop_back();
    return nullptr;
  }
  return &request;
}

void OpQueue::recycle(Request* request) { free_.push_back(request); }

void OpQueue::append(Request* request) {
  request->next = nullptr;
  (last_ != nullptr ? last_->next : first_) = request;
  last_ = request;
  if (next_ == nullptr) next_ = request;
}

db_status OpQueue::submit(const Op& op, cudaStream_t stream, db_request** out, db_error* error) {
  const OnDevice on_device(device_);
  Request* request = nullptr;
  {
    const Lock lock(mutex_);
    if (failed_) return report(failure_, error);
    if (free_.empty() || launched_ >= kMaxLaunched) sweep();
    // This rank neither sends nor receives, so it takes no part.
    if (op.kind != DB_BARRIER && op.send_size == 0 && op.recv_size == 0) return DB_OK;
    request = take();
  }
  if (request == nullptr)
    return report(DB_ERR_NO_MEMORY, "nccl: cannot create a CUDA event", error);
  // Without the lock: this waits if the stream is full, and deadlines must be kept meanwhile.
  const cudaError_t problem = cuda().EventRecord(request->ready, stream);
  const Lock lock(mutex_);
  if (problem != cudaSuccess || failed_) {
    recycle(request);
    if (failed_) return report(failure_, error);
    Failure failure = cuda_failure(problem, describe(op) + " was given a stream that fails");
    failure.flags = 0;  // nothing was started
    return report(failure, error);
  }
  request->op = op;
  keep_counts(&request->op, context_.size, &request->counts);
  request->stage = Stage::kQueued;
  request->good = request->released = false;
  request->op.sequence = ++sequence_;
  request->submitted_ns = now_ns();
  append(request);
  if (op.blocking || !is_point_to_point(op.kind)) {
    flush();
    advance();
    while (!failed_ && !launching_.empty() && request->stage < Stage::kLaunched &&
           now_ns() - request->submitted_ns < kLaunchSpinNs) {
      sched_yield();
      advance();
    }
  }
  if (idle_ || next_ != nullptr || !launching_.empty()) wake_.notify_all();
  *out = request->handle();
  return DB_IN_PROGRESS;
}

// ---- Launching ----

void OpQueue::advance() {
  if (failed_ || (launching_.empty() && (next_ == nullptr || next_->op.sequence > flush_to_)))
    return;
  const OnDevice on_device(device_);
  while (!failed_) {
    if (!launching_.empty()) {
      const ncclResult_t state = state_of(context_.comm);
      if (state == ncclInProgress) return;
      if (state != ncclSuccess)
        return fail_locked(nccl_failure(
            state, context_.comm, "asynchronous error during " + describe(launching_[0]->op)));
      finish_launch();
    }
    if (next_ == nullptr || next_->op.sequence > flush_to_ || launched_ >= kMaxLaunched) return;
    begin_launch();
  }
}

void OpQueue::begin_launch() {
  if (is_point_to_point(next_->op.kind)) return begin_messages();
  Request* const request = next_;
  next_ = request->next;
  request->stage = Stage::kLaunching;
  launching_.push_back(request);
  const cudaError_t error = cuda().StreamWaitEvent(context_.stream, request->ready, 0);
  const Failure failure = error == cudaSuccess ? start(context_, request->op, &request->resources)
                                               : cuda_failure(error, describe(request->op));
  if (!failure.ok()) fail_locked(failure);
}

void OpQueue::begin_messages() {
  messages_.clear();
  cudaError_t error = cudaSuccess;
  while (next_ != nullptr && is_point_to_point(next_->op.kind) && next_->op.sequence <= flush_to_) {
    messages_.push_back(&next_->op);
    launching_.push_back(next_);
    next_->stage = Stage::kLaunching;
    const cudaError_t one = cuda().StreamWaitEvent(context_.stream, next_->ready, 0);
    if (error == cudaSuccess) error = one;
    next_ = next_->next;
  }
  const Failure failure = error == cudaSuccess ? start_messages(context_, messages_)
                                               : cuda_failure(error, describe(*messages_[0]));
  if (!failure.ok()) fail_locked(failure);
}

void OpQueue::finish_launch() {
  for (Request* const request : launching_) {
    release_resources(context_, &request->resources);
    const cudaError_t error = cuda().EventRecord(request->done, context_.stream);
    if (error != cudaSuccess) return fail_locked(cuda_failure(error, describe(request->op)));
    request->stage = Stage::kLaunched;
    newest_ = request;
    ++launched_;
  }
  launching_.clear();
}

// ---- Completion ----

// Completes operations that the GPU has finished. Events of one stream complete in order, so the
// newest is asked first: it often answers for all.
void OpQueue::sweep() {
  if (failed_ || first_ == nullptr || first_->stage != Stage::kLaunched) return;
  const bool all = first_ != newest_ && cuda().EventQuery(newest_->done) == cudaSuccess;
  while (first_ != nullptr && first_->stage == Stage::kLaunched) {
    Request* const request = first_;
    const cudaError_t error = all ? cudaSuccess : cuda().EventQuery(request->done);
    if (error == cudaErrorNotReady) return;
    if (error != cudaSuccess) return fail_locked(cuda_failure(error, describe(request->op)));
    first_ = request->next;
    if (first_ == nullptr) last_ = nullptr;
    --launched_;
    request->stage = Stage::kDone;
    request->good = true;
    if (request->released) recycle(request);
  }
}

// After a failure: ends every operation.
void OpQueue::end_all() {
  while (first_ != nullptr) {
    Request* const request = first_;
    first_ = request->next;
    request->stage = Stage::kDone;
    if (clean_ && request->resources.scratch != nullptr)
      cuda().FreeAsync(request->resources.scratch, context_.stream);
    request->resources = {};
    if (request->released) recycle(request);
  }
  last_ = next_ = nullptr;
  launched_ = 0;
  launching_.clear();
}

db_status OpQueue::status_of(const Request& request, db_error* error) const {
  if (request.stage == Stage::kDone && request.good) return DB_OK;
  if (request.stage == Stage::kDone || given_up()) return report(failure_, error);
  return DB_IN_PROGRESS;
}

db_status OpQueue::step(Request* request, db_error* error) {
  if (request->stage != Stage::kDone) {
    flush();
    advance();
    sweep();
  }
  return status_of(*request, error);
}

db_status OpQueue::test(db_request* handle, db_error* error) {
  Request& request = Request::of(handle);
  const Lock lock(request.owner->mutex_);
  return request.owner->step(&request, error);
}

// Returns DB_IN_PROGRESS when ends(), called with the lock and the time waited, is true.
template <class Ends>
db_status OpQueue::wait_until(Request* request, const Ends& ends, db_error* error) {
  const int64_t began = now_ns();
  for (;; pause_since(began)) {
    const Lock lock(mutex_);
    const db_status status = step(request, error);
    if (status != DB_IN_PROGRESS) return status;
    const int64_t now = now_ns();
    if (!failed_ && now > request->op.deadline_ns) time_out(request->op);
    if (ends(now - began)) return status;
  }
}

db_status OpQueue::wait(db_request* handle, int64_t timeout_ns, db_error* error) {
  Request& request = Request::of(handle);
  const auto ends = [&](int64_t waited) { return timeout_ns >= 0 && waited >= timeout_ns; };
  const db_status status = request.owner->wait_until(&request, ends, error);
  if (status != DB_IN_PROGRESS) return status;
  return report(DB_ERR_TIMEOUT,
                "nccl: " + describe(request.op) + " is not complete after " +
                    std::to_string(timeout_ns / 1'000'000) + " ms of waiting; it continues",
                error);
}

db_status OpQueue::wait_stream(db_request* handle, cudaStream_t stream, db_error* error) {
  Request& request = Request::of(handle);
  OpQueue& self = *request.owner;
  bool failed = false;
  // At once, unless ranks have to be connected for the first time.
  const auto ends = [&](int64_t) {
    failed = self.failed_;
    return failed || request.stage == Stage::kLaunched;
  };
  const db_status status = self.wait_until(&request, ends, error);
  if (status != DB_IN_PROGRESS) return status;
  if (failed) return self.async_error(error);
  // Without the lock, as in submit(); the request owns the event until release().
  const OnDevice on_device(self.device_);
  const cudaError_t problem = cuda().StreamWaitEvent(stream, request.done, 0);
  if (problem == cudaSuccess) return DB_OK;
  const Lock lock(self.mutex_);
  return report(cuda_failure(problem, describe(request.op)), error);
}

void OpQueue::release(db_request* handle) {
  Request& request = Request::of(handle);
  OpQueue& self = *request.owner;
  const Lock lock(self.mutex_);
  if (request.stage == Stage::kDone) return self.recycle(&request);
  request.released = true;
  self.flush();
  self.advance();
  if (self.next_ != nullptr || !self.launching_.empty()) self.wake_.notify_all();
}

db_status OpQueue::async_error(db_error* error) const {
  const Lock lock(mutex_);
  return failed_ ? report(failure_, error) : DB_OK;
}

// The watcher: whatever must happen while no thread calls.

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
  const ncclResult_t state = state_of(context_.comm);
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
  uint64_t seen = sequence_;
  int64_t busy_ns = now_ns();
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
    if (first_ != nullptr || sequence_ != seen) busy_ns = now;
    seen = sequence_;
    idle_ = first_ == nullptr && now - busy_ns > kCalmNs;
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
