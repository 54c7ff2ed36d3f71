// OpQueue: the operations of one communicator from submit() to their completion.
//
// An operation is queued, then handed to NCCL (which may first connect ranks, on its own thread),
// then on the communicator's CUDA stream; an event after it signals completion. The stream waits
// for the stream that produced the data, not the host. Progress needs no further call: any thread
// that calls (submit, test, a waiter) advances it, otherwise the watcher does, a thread that also
// checks for NCCL's asynchronous errors and for deadlines.
//
// Non-blocking SEND and RECV are held until a caller asks for one of them, until another operation
// is submitted, or for kHoldNs: operations in one NCCL group cannot wait for one another, while a
// lone receive would keep the stream from the send after it.
//
// A failure (a deadline, an asynchronous error, abort) makes the queue FAILED. The watcher then
// calls ncclCommAbort; waits end when that has stopped the GPU, at the latest after kAbortLimitNs.
//
// No lock is held while CUDA may wait for a full stream of the caller, so deadlines are still kept.
//
// Threads: submit(), split(), shrink() and register_buffer() are [comm-serial], the rest is
// [any-thread]. A request's memory is reused, so a steady state does not allocate.
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
#include "nccl/bootstrap.h"
#include "nccl/calls.h"

namespace db::nccl {

// Waits a little; backs off with the time waited since began_ns.
void pause_since(int64_t began_ns);

class OpQueue {
 public:
  // Takes ownership of comm, even on failure. Throws if a thread or memory is not available.
  static Failure create(ncclComm_t comm, int device, const Settings& settings,
                        std::unique_ptr<OpQueue>* result);
  ~OpQueue();
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  int32_t rank() const { return context_.rank; }
  int32_t size() const { return context_.size; }

  // The functions of the ABI, on a validated op; stream is the one that produced op.send.
  db_status submit(const Op& op, cudaStream_t stream, db_request** request, db_error* error);
  static db_status test(db_request* request, db_error* error);
  static db_status wait(db_request* request, int64_t timeout_ns, db_error* error);
  static db_status wait_stream(db_request* request, cudaStream_t stream, db_error* error);
  static void release(db_request* request);
  db_status async_error(db_error* error) const;
  void fail(const Failure& failure);

  // Waits until everything submitted has completed, then calls ncclCommSplit. *child stays NULL for
  // a negative color.
  Failure split(int32_t color, int32_t key, int64_t timeout_ns, ncclComm_t* child);
  // ncclCommShrink without the excluded ranks, which are in ascending order. aborts: operations in
  // flight are ended, and the queue is FAILED; otherwise it waits for them.
  Failure shrink(std::vector<int> excluded, bool aborts, int64_t timeout_ns, ncclComm_t* child);

  // ncclCommRegister and ncclCommDeregister.
  Failure register_buffer(void* buffer, uint64_t bytes, int64_t timeout_ns, void** handle);
  Failure deregister_buffer(void* handle, int64_t timeout_ns);

 private:
  struct Request;
  enum class Stage : uint8_t { kQueued, kLaunching, kLaunched, kDone };
  using Lock = std::unique_lock<std::mutex>;

  OpQueue(ncclComm_t comm, int device);
  Failure open(const Settings& settings);

  Request* take();
  void recycle(Request* request);
  void append(Request* request);
  void flush() { flush_to_ = sequence_; }
  void advance();
  void begin_launch();
  void begin_messages();
  void finish_launch();
  void sweep();
  db_status status_of(const Request& request, db_error* error) const;
  db_status step(Request* request, db_error* error);
  void end_all();

  template <class Ends>
  db_status wait_until(Request* request, const Ends& ends, db_error* error);
  template <class Busy>
  bool wait_while(Lock& lock, int64_t deadline_ns, const Busy& busy);
  Failure drain(Lock& lock, const char* what, int64_t deadline_ns, int64_t timeout_ns);
  Failure settle(Lock& lock, int64_t deadline_ns);
  Failure finish_child(Lock& lock, const char* what, ncclResult_t state, int64_t deadline_ns,
                       int64_t timeout_ns);

  void fail_locked(const Failure& failure);
  void time_out(const Op& op);
  bool given_up() const { return failed_ && (reaped_ || now_ns() > give_up_ns_); }
  void watch();
  void check_deadlines(int64_t now);
  void check_async_error();
  void reap(Lock& lock);

  const int device_;
  LaunchContext context_;
  Settings settings_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the watcher waits on it
  uint64_t sequence_ = 0;         // of the operation submitted last
  uint64_t flush_to_ = 0;         // operations up to this one are no longer held
  Request* first_ = nullptr;      // all incomplete operations, in order
  Request* last_ = nullptr;
  Request* next_ = nullptr;          // the first queued operation
  std::vector<const Op*> messages_;  // of the group being built
  std::vector<Request*> launching_;  // handed to NCCL, not on the stream yet
  int launched_ = 0;                 // on the stream
  Request* newest_ = nullptr;        // the last of these
  std::vector<Request*> free_;
  std::vector<std::unique_ptr<Request>> all_;
  // NCCL writes the communicator of split() or shrink() here, asynchronously.
  std::unique_ptr<ncclComm_t> child_ = std::make_unique<ncclComm_t>(nullptr);
  bool shrinking_ = false;  // FAILED, but must not be aborted yet
  bool failed_ = false;
  Failure failure_;
  int64_t give_up_ns_ = 0;
  bool reaped_ = false;  // ncclCommAbort has returned or was given up
  bool clean_ = true;    // the GPU no longer uses the communicator's resources
  bool idle_ = false;    // the watcher has nothing to do
  bool stop_ = false;
  std::thread watcher_;
};

// One operation of a queue from submit() to its completion and release(). The queue's lock
// guards everything except the pointer to the queue.
struct OpQueue::Request {
  OpQueue* owner = nullptr;
  Op op;
  std::vector<uint64_t> counts;  // op's count arrays point here
  LaunchResources resources;
  cudaEvent_t ready = nullptr;  // recorded when the input data is ready
  cudaEvent_t done = nullptr;   // recorded when the operation is complete
  int64_t submitted_ns = 0;
  Stage stage = Stage::kQueued;
  bool good = false;  // for kDone: completed successfully
  bool released = false;
  Request* next = nullptr;

  static Request& of(db_request* request) { return *reinterpret_cast<Request*>(request); }
  db_request* handle() { return reinterpret_cast<db_request*>(this); }
};

}  // namespace db::nccl
