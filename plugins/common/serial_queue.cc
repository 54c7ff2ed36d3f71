#include "common/serial_queue.h"

#include <algorithm>
#include <chrono>

#include "common/thread.h"

namespace db {
namespace {

constexpr int64_t kSpinNs = 5'000;       // before a thread blocks
constexpr int64_t kPollSpinNs = 20'000;  // between polls of a started operation, at first
constexpr int64_t kPollLongestNs = 200'000;

// How long to sleep before the next poll of something that began at since: zero at first, then
// backing off with the time waited.
int64_t poll_delay(int64_t since) {
  const int64_t waited = now_ns() - since;
  return waited < kPollSpinNs ? 0 : std::min(waited / 4, kPollLongestNs);
}

}  // namespace

struct SerialQueue::Request {
  explicit Request(SerialQueue* of) : queue(of) {}
  static Request* of(db_request* request) { return reinterpret_cast<Request*>(request); }

  SerialQueue* const queue;
  std::atomic<int32_t> status{DB_IN_PROGRESS};  // stored last; op and failure are final after it
  int32_t references = 0;                       // the queue's and the user's; under mutex_
  bool queued = false;                          // not started yet; under mutex_
  Op op;
  Failure failure;
  std::vector<uint64_t> counts;
  Request* next = nullptr;
};

SerialQueue::SerialQueue(Executor* executor, int32_t size) : executor_(executor), size_(size) {}
SerialQueue::~SerialQueue() { shutdown(); }

// ---- Submitting --------------------------------------------------------------------------------

db_status SerialQueue::submit(Op& op, db_request** request, db_error* error) {
  *request = nullptr;
  if (failed()) return dead(error);
  op.sequence = ++sequence_;
  if (op.blocking) return report(run_inline(op), error);
  Request* const r = take_request();
  r->op = op;
  keep_counts(&r->op, size_, &r->counts);
  enqueue(r);
  *request = reinterpret_cast<db_request*>(r);
  return DB_IN_PROGRESS;
}

Failure SerialQueue::run_inline(Op& op) {
  // Nothing is outstanding, so no other thread can reach the executor: only requests lead there,
  // and only this thread may submit.
  const bool alone = outstanding_.load(std::memory_order_acquire) == 0;
  if (!alone) {
    Lock lock(mutex_);
    take_turn(lock);
    run_queue(lock, nullptr);
    if (failed()) {
      end_turn();
      return Failure::make(DB_ERR_ABORTED, "an earlier operation failed: " + failure_.message,
                           DB_ERROR_COMM_DEAD, failure_.failed_rank);
    }
  }
  Failure result = executor_->execute(op);
  const int64_t since = result.status == DB_IN_PROGRESS ? now_ns() : 0;
  while (result.status == DB_IN_PROGRESS) {
    if (const int64_t delay = poll_delay(since); delay > 0)
      std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
    if (failed()) {
      executor_->cancel(op);
      result = Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD);
    } else {
      result = executor_->poll(op);
    }
  }
  if (result.dead()) fail(result);
  if (!alone) {
    const Lock lock(mutex_);
    end_turn();
  }
  return result;
}

db_status SerialQueue::dead(db_error* error) const {
  const Lock lock(mutex_);
  Failure failure = failure_;
  failure.status = DB_ERR_ABORTED;
  failure.message = "the communicator has failed: " + failure_.message;
  return report(failure, error);
}

SerialQueue::Request* SerialQueue::take_request() {
  const Lock lock(mutex_);
  if (free_ == nullptr) {
    all_.push_back(std::make_unique<Request>(this));
    return all_.back().get();
  }
  Request* const request = free_;
  free_ = request->next;
  return request;
}

void SerialQueue::enqueue(Request* request) {
  request->status.store(DB_IN_PROGRESS, std::memory_order_relaxed);
  Lock lock(mutex_);
  if (!worker_.joinable()) worker_ = start_thread([this] { work(); });
  request->references = 2;
  request->queued = true;
  request->next = nullptr;
  (head_ == nullptr ? head_ : tail_->next) = request;
  tail_ = request;
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  if (failed()) {  // abort() was called in the meantime
    fail_locked(failure_);
    return;
  }
  if (!worker_idle_) return;
  worker_idle_ = false;  // one wake-up is enough
  lock.unlock();         // the worker should not wake up to a locked mutex
  work_.notify_one();
}

// ---- The turn: its holder may call the executor -------------------------------------------------

void SerialQueue::take_turn(Lock& lock) {
  changed_.wait(lock, [&] { return !busy_; });
  busy_ = true;
}

void SerialQueue::end_turn() {
  busy_ = false;
  if (failed()) cancel_started();
  changed_.notify_all();
  if (worker_idle_ && (head_ != nullptr || started_ != nullptr)) {
    worker_idle_ = false;
    work_.notify_one();
  }
}

// Starts queued operations in order, up to and including until (NULL: all). Call with the turn.
void SerialQueue::run_queue(Lock& lock, const Request* until) {
  while (head_ != nullptr) {
    Request* const request = head_;
    head_ = request->next;
    if (head_ == nullptr) tail_ = nullptr;
    request->queued = false;
    lock.unlock();
    request->failure = executor_->execute(request->op);
    lock.lock();
    settle(request);
    if (request == until) return;
  }
}

// Polls every started operation once; returns whether one completed. Call with the turn.
bool SerialQueue::poll_started(Lock& lock) {
  bool any = false;
  Request* rest = started_;
  started_ = nullptr;
  while (rest != nullptr) {
    Request* const request = rest;
    rest = request->next;
    if (failed()) {  // end_turn() cancels
      request->next = started_;
      started_ = request;
      continue;
    }
    lock.unlock();
    request->failure = executor_->poll(request->op);
    lock.lock();
    any = any || request->failure.status != DB_IN_PROGRESS;
    settle(request);
  }
  return any;
}

void SerialQueue::settle(Request* request) {
  if (request->failure.status != DB_IN_PROGRESS) return complete(request);
  request->next = started_;
  started_ = request;
}

void SerialQueue::complete(Request* request) {
  if (request->failure.dead()) fail_locked(request->failure);
  request->status.store(request->failure.status, std::memory_order_release);
  outstanding_.fetch_sub(1, std::memory_order_release);
  changed_.notify_all();
  unref(request);
}

// ---- Failing -----------------------------------------------------------------------------------

void SerialQueue::fail(const Failure& failure) {
  const Lock lock(mutex_);
  fail_locked(failure);
}

void SerialQueue::fail_locked(const Failure& failure) {
  if (!failed()) {
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
  }
  while (head_ != nullptr) {
    Request* const request = head_;
    head_ = request->next;
    request->queued = false;
    request->failure =
        Failure::make(DB_ERR_ABORTED, "not started: " + failure_.message, 0, failure_.failed_rank);
    complete(request);
  }
  tail_ = nullptr;
  if (!busy_) cancel_started();
}

void SerialQueue::cancel_started() {
  while (started_ != nullptr) {
    Request* const request = started_;
    started_ = request->next;
    executor_->cancel(request->op);
    request->failure =
        Failure::make(DB_ERR_ABORTED, "canceled: " + failure_.message, 0, failure_.failed_rank);
    complete(request);
  }
}

db_status SerialQueue::async_error(db_error* error) const {
  if (!failed()) return DB_OK;
  const Lock lock(mutex_);
  return report(failure_, error);
}

// ---- Waiting -----------------------------------------------------------------------------------

db_status SerialQueue::test(db_request* request, db_error* error) {
  Request* const r = Request::of(request);
  const db_status status = r->status.load(std::memory_order_acquire);
  return status < 0 ? report(r->failure, error) : status;
}

db_status SerialQueue::wait(db_request* request, int64_t timeout_ns, db_error* error) {
  Request* const r = Request::of(request);
  return r->queue->wait_for(r, timeout_ns, error);
}

db_status SerialQueue::wait_for(Request* r, int64_t timeout_ns, db_error* error) {
  const auto done = [r] { return r->status.load(std::memory_order_acquire) != DB_IN_PROGRESS; };
  const auto result = [r, error] { return test(reinterpret_cast<db_request*>(r), error); };
  if (done()) return result();
  const int64_t begin = now_ns();
  const int64_t end = timeout_ns >= 0 ? deadline_after(timeout_ns) : INT64_MAX;
  // Running an operation may take until its deadline; a waiter with less time must not run it.
  const bool may_help = end >= r->op.deadline_ns;
  bool spun = false;
  Lock lock(mutex_);
  while (!done()) {
    int64_t sleep = end == INT64_MAX ? -1 : end - now_ns();
    if (end != INT64_MAX && sleep <= 0)
      return report(DB_ERR_TIMEOUT, describe(r->op) + " is not complete yet", error);
    if (!busy_ && (may_help || !r->queued)) {
      busy_ = true;
      if (r->queued) run_queue(lock, r);
      if (!done()) poll_started(lock);
      end_turn();
      if (done()) break;
      const int64_t delay = poll_delay(begin);
      if (delay == 0) {
        lock.unlock();
        cpu_pause();
        lock.lock();
        continue;
      }
      sleep = sleep < 0 ? delay : std::min(sleep, delay);
    } else if (!spun) {  // another thread is running it: it may complete in a moment
      spun = true;
      lock.unlock();
      for (const int64_t until = now_ns() + kSpinNs; !done() && now_ns() < until;) cpu_pause();
      lock.lock();
      continue;
    }
    if (sleep < 0)
      changed_.wait(lock);
    else
      changed_.wait_for(lock, std::chrono::nanoseconds(sleep));
  }
  lock.unlock();
  return result();
}

void SerialQueue::release(db_request* request) {
  Request* const r = Request::of(request);
  const Lock lock(r->queue->mutex_);
  r->queue->unref(r);
}

void SerialQueue::unref(Request* request) {
  if (--request->references > 0) return;
  request->next = free_;
  free_ = request;
}

// ---- The worker and shutdown --------------------------------------------------------------------

void SerialQueue::work() {
  Lock lock(mutex_);
  int64_t since = 0;  // when the current wait for started operations began
  while (!stop_) {
    if (busy_ || (head_ == nullptr && started_ == nullptr)) {
      worker_idle_ = true;
      work_.wait(lock);
      worker_idle_ = false;
      since = 0;
      continue;
    }
    busy_ = true;
    const bool news = head_ != nullptr;
    run_queue(lock, nullptr);
    const bool progress = poll_started(lock);
    end_turn();
    if (head_ != nullptr || started_ == nullptr) continue;
    if (news || progress || since == 0) since = now_ns();
    const int64_t delay = std::max<int64_t>(poll_delay(since), 1'000);
    worker_idle_ = true;
    work_.wait_for(lock, std::chrono::nanoseconds(delay));
    worker_idle_ = false;
  }
}

db_status SerialQueue::drain(db_error* error) {
  Lock lock(mutex_);
  if (!failed()) {
    take_turn(lock);
    run_queue(lock, nullptr);
    end_turn();
  }
  lock.unlock();
  return failed() ? dead(error) : DB_OK;
}

void SerialQueue::shutdown() {
  {
    Lock lock(mutex_);
    fail_locked(
        Failure::make(DB_ERR_ABORTED, "the communicator was destroyed", DB_ERROR_COMM_DEAD));
    stop_ = true;
    work_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

}  // namespace db
