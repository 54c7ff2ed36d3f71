// Mailbox: matches a process's sends to itself with its receives, by tag and in
// order. A request is one such message, or an already complete collective. Any
// thread may call every function.
#pragma once

#include <coupler/distributed_backend.h>

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>

namespace plugin {

using Time = std::chrono::steady_clock::time_point;
Time after(int64_t timeout_ns);  // without overflow

class Mailbox;

}  // namespace plugin

// Declared by the ABI, which knows only the name.
struct db_request {
  std::shared_ptr<plugin::Mailbox> box;
  const void *send = nullptr;  // send or recv is set
  void *recv = nullptr;
  uint64_t bytes = 0;
  plugin::Time deadline = plugin::Time::max();
  bool is_send = false;
  int32_t tag = 0;
  db_status status = DB_IN_PROGRESS;
  bool released = false;  // released by the host before it was complete
};

namespace plugin {

class Mailbox {
 public:
  // Matches the request, or queues it. Returns its status.
  db_status post(db_request &request);
  // Returns its status; an expired deadline ends it and the communicator.
  db_status test(db_request &request);
  // Blocks until it is complete, or until the given time: DB_IN_PROGRESS.
  db_status wait(db_request &request, Time until);
  void release(db_request *request);

  // Ends everything pending; the first reason is kept.
  void end(db_status reason);
  db_status state();

 private:
  void complete(db_request &request, db_status status);
  void end_locked(db_status reason);
  db_status expire_locked(db_request &request);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<db_request *> waiting_;  // not yet matched, oldest first
  db_status state_ = DB_OK;          // or the reason the communicator ended
};

}  // namespace plugin
