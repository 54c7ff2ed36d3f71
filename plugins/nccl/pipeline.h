// Pipeline: the operations of one communicator from submit() to their end.
//
// An operation is queued, then handed to NCCL (which may first have to connect ranks, on a thread
// of its own), then on the communicator's CUDA stream; an event behind it tells when it is over.
// The stream waits for the stream that produced the data, never the host. Nobody has to call again
// for that to go on: whoever comes along (submit, test, a waiter) takes it a step further, else the
// watcher, a thread that also looks for NCCL's asynchronous errors and for deadlines.
//
// SEND and RECV that are not blocking are held until somebody asks for one of them, another
// operation is submitted, or for kHoldNs: what NCCL gets in one group cannot wait for one another,
// while a lone receive would keep the stream from the send behind it.
//
// A failure (a deadline, an asynchronous error, abort) makes the pipeline FAILED. The watcher then
// calls ncclCommAbort, and when that has ended the GPU's part, waits end, after kAbortLimitNs at
// the latest.
//
// No lock is held where CUDA may wait, for a stream of the caller that is full: deadlines are kept
// all the same.
//
// Threads: submit(), split(), shrink() and know() are [comm-serial], the rest is [any-thread]. A
// request's memory is used again, so that a steady state does not allocate.
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

// Waits a little, the longer the longer the caller has waited since began_ns.
void pause_since(int64_t began_ns);

class Pipeline {
 public:
  // Owns comm, also where this fails. Throws what a thread or memory that cannot be had throws.
  static Failure create(ncclComm_t comm, int device, const Settings& settings,
                        std::unique_ptr<Pipeline>* result);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  int32_t rank() const { return channel_.rank; }
  int32_t size() const { return channel_.size; }

  // The functions of the ABI, on a validated op; stream is the one that produced op.send.
  db_status submit(const Op& op, cudaStream_t stream, db_request** request, db_error* error);
  static db_status test(db_request* request, db_error* error);
  static db_status wait(db_request* request, int64_t timeout_ns, db_error* error);
  static db_status wait_stream(db_request* request, cudaStream_t stream, db_error* error);
  static void release(db_request* request);
  db_status async_error(db_error* error) const;
  void fail(const Failure& failure);

  // Waits until everything submitted is over, then ncclCommSplit. *part stays NULL for a negative
  // color.
  Failure split(int32_t color, int32_t key, int64_t timeout_ns, ncclComm_t* part);
  // ncclCommShrink without the ranks excluded, in ascending order. aborts: what is under way ends,
  // and the pipeline is FAILED; else it is waited for.
  Failure shrink(std::vector<int> excluded, bool aborts, int64_t timeout_ns, ncclComm_t* part);

  // ncclCommRegister and ncclCommDeregister.
  Failure know(void* buffer, uint64_t bytes, int64_t timeout_ns, void** handle);
  Failure forget(void* handle, int64_t timeout_ns);

 private:
  struct Request;
  enum class Stage : uint8_t { kQueued, kLaunching, kLaunched, kOver };
  using Lock = std::unique_lock<std::mutex>;

  Pipeline(ncclComm_t comm, int device);
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

  template <class Busy>
  bool wait_while(Lock& lock, int64_t deadline_ns, const Busy& busy);
  Failure drain(Lock& lock, const char* what, int64_t deadline_ns, int64_t timeout_ns);
  Failure settle(Lock& lock, int64_t deadline_ns);
  Failure finish_part(Lock& lock, const char* what, ncclResult_t state, int64_t deadline_ns,
                      int64_t timeout_ns);

  void fail_locked(const Failure& failure);
  void time_out(const Op& op);
  bool given_up() const { return failed_ && (reaped_ || now_ns() > give_up_ns_); }
  void watch();
  void check_deadlines(int64_t now);
  void check_async_error();
  void reap(Lock& lock);

  const int device_;
  Channel channel_;
  Settings settings_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the watcher
  uint64_t sequence_ = 0;         // of the operation submitted last
  uint64_t flush_to_ = 0;         // operations up to this one are no longer held
  Request* first_ = nullptr;      // everything that is not over, in order
  Request* last_ = nullptr;
  Request* next_ = nullptr;          // the first that is queued
  std::vector<const Op*> messages_;  // of the group that is made up
  std::vector<Request*> launching_;  // handed to NCCL, not on the stream yet
  int launched_ = 0;                 // on the stream
  std::vector<Request*> free_;
  std::vector<std::unique_ptr<Request>> all_;
  // NCCL writes the communicator that split() or shrink() makes there, at a time of its own.
  std::unique_ptr<ncclComm_t> part_ = std::make_unique<ncclComm_t>(nullptr);
  bool shrinking_ = false;  // FAILED, but not to be aborted yet
  bool failed_ = false;
  Failure failure_;
  int64_t give_up_ns_ = 0;
  bool reaped_ = false;  // ncclCommAbort is over, or was given up
  bool clean_ = true;    // the GPU has let go of what the communicator used
  bool idle_ = false;    // the watcher waits for something to do
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace db::nccl
