// SelfChannel: messages from a process to itself, matched by tag in order. A send is complete once
// a receive has taken it, so nothing is buffered. [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace coupler {

class SelfChannel {
 public:
  using Clock = std::chrono::steady_clock;

  struct Message {
    const void* send = nullptr;  // one of the two is set
    void* recv = nullptr;
    uint64_t bytes = 0;
    int32_t tag = 0;
    Clock::time_point deadline;
    db_status status = DB_IN_PROGRESS;
  };
  using Handle = std::shared_ptr<Message>;

  // Matches the message with a waiting one, or lets it wait. The handle may be dropped at any time.
  Handle post(const Message& message);

  // The message's state. After its deadline it is DB_ERR_TIMEOUT, and the channel dead.
  db_status test(const Handle& handle);
  // Blocks until the message is complete or `until` has passed; then DB_IN_PROGRESS.
  db_status wait(const Handle& handle, Clock::time_point until);

  // DB_OK, or what ended the channel.
  db_status state();
  // Ends everything pending as DB_ERR_ABORTED; the first reason becomes the state.
  void end(db_status reason);

 private:
  db_status expire(const Handle& handle);
  void end_locked(db_status reason);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Handle> waiting_;  // all unmatched
  db_status state_ = DB_OK;
};

}  // namespace coupler
