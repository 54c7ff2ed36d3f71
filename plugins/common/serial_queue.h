// SerialQueue: asynchronous execution for transports on host memory. Each communicator has one
// queue; it starts operations strictly in submission order and never runs two at once.
//
// Who runs an operation, in order of preference:
//  - the submitter (Op::blocking, nothing outstanding): no lock, no thread switch, no allocation;
//  - a waiter, if no thread has picked the operation up yet: the waiter takes the turn and runs the
//    queue up to and including its own operation;
//  - the worker thread, started at the first non-blocking operation and joined by shutdown().
//
// Point-to-point operations may be started by execute() and completed later by poll(), so that a
// send does not block the receive submitted after it.
//
// Threads: submit(), drain() and shutdown() are [comm-serial] as the ABI defines it; test(),
// wait(), release(), async_error() and abort() are [any-thread]. The executor's functions are
// called by one thread at a time, not always the same one, without a lock (cancel(): with the
// queue's lock held, so it must not call back).
// Lifetimes: the executor outlives shutdown(). A request lives from submit() until it is both
// complete and released; its memory is reused, so a steady state does not allocate.
// Every wait ends because the executor enforces the deadlines of its operations (or ends the
// process if its library cannot return).
#pragma once

#include <coupler/distributed_backend.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/op.h"

namespace db {

// What a transport does with one operation. DB_ERROR_COMM_DEAD in the flags of a failure makes the
// queue FAILED.
class Executor {
 public:
  // DB_OK: complete. DB_IN_PROGRESS (SEND and RECV only): started, poll() completes it.
  // Returns DB_ERR_TIMEOUT soon after op.deadline_ns.
  virtual Failure execute(Op& op) = 0;
  // Never blocks: DB_OK, DB_IN_PROGRESS, or an error, timeouts included, which ends op.
  virtual Failure poll(Op& op) = 0;
  // Cancels a started operation and frees its resources. Never blocks.
  virtual void cancel(Op& op) = 0;

 protected:
  ~Executor() = default;
};

class SerialQueue {
 public:
  SerialQueue(Executor* executor, int32_t size);
  ~SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  // The functions of the ABI, on a validated op. submit() may throw std::bad_alloc or
  // std::system_error (if no thread can be created); then nothing was started.
  db_status submit(Op& op, db_request** request, db_error* error);
  static db_status test(db_request* request, db_error* error);
  static db_status wait(db_request* request, int64_t timeout_ns, db_error* error);
  static void release(db_request* request);
  db_status async_error(db_error* error) const;

  // Runs everything queued, so that the caller may use the transport itself (split). Returns DB_OK,
  // or the error that made the queue FAILED.
  db_status drain(db_error* error);

  // Makes the queue FAILED with failure, unless it already is: everything queued or started ends
  // with DB_ERR_ABORTED; the running operation ends when its executor returns. Never blocks.
  void fail(const Failure& failure);
  void abort() { fail(Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD)); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Ends everything as abort() does and joins the worker. Idempotent.
  void shutdown();

 private:
  struct Request;
  using Lock = std::unique_lock<std::mutex>;

  Failure run_inline(Op& op);
  db_status dead(db_error* error) const;
  Request* take_request();
  void enqueue(Request* request);
  void take_turn(Lock& lock);
  void end_turn();
  void run_queue(Lock& lock, const Request* until);
  bool poll_started(Lock& lock);
  void settle(Request* request);
  void complete(Request* request);
  void fail_locked(const Failure& failure);
  void cancel_started();
  void unref(Request* request);
  db_status wait_for(Request* request, int64_t timeout_ns, db_error* error);
  void work();

  Executor* const executor_;
  const int32_t size_;
  uint64_t sequence_ = 0;                // [comm-serial]
  std::atomic<int64_t> outstanding_{0};  // requests that are not complete
  std::atomic<bool> failed_{false};      // failure_ is set; never reset
  mutable std::mutex mutex_;             // guards everything below; only the holder of the turn
  std::condition_variable changed_;      // changes started_
  std::condition_variable work_;
  bool busy_ = false;  // a thread holds the turn and may call the executor
  bool stop_ = false;
  bool worker_idle_ = false;  // the worker waits on work_
  Failure failure_;
  Request* head_ = nullptr;  // queued, not started
  Request* tail_ = nullptr;
  Request* started_ = nullptr;  // point-to-point operations in flight
  Request* free_ = nullptr;
  std::vector<std::unique_ptr<Request>> all_;
  std::thread worker_;
};

}  // namespace db
